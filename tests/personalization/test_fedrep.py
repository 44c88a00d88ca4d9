from typing import Any

import pytest
from people import BATCHNORM, copy, moved, personalized

from fedexp.core.sockets import Phase
from fedexp.errors import InputError
from fedexp.personalization.fedrep import FedRep

HEAD = {"head.linear.weight", "head.linear.bias"}


def test_head_first_then_body() -> None:
    head, body = FedRep(7).phases(3)
    assert (head.epochs, head.trainable) == (7, ("head.",))
    assert (body.epochs, body.trainable) == (3, ("backbone.",))
    engine: Any = personalized("fedrep").engine
    assert [phase.epochs for phase in engine.resources.personalization.phases(1)] == [10, 1]


def after(phase: Phase, *overrides: str) -> set[str]:
    """Names of the weights and buffers that one phase moves."""
    federation = personalized("fedrep", *overrides)
    engine, message = federation.engine, federation.server.broadcast(1)
    with engine.resources.store.open(0) as state:
        module = engine.begin(0, message, state)
    before = copy(module.weights)
    engine.fit(module, [phase])
    return moved(before, module.weights)


def test_the_body_does_not_move_in_the_first_phase_nor_its_statistics() -> None:
    assert after(FedRep(2).phases(1)[0], *BATCHNORM) == HEAD


def test_the_head_does_not_move_in_the_second_phase() -> None:
    found = after(FedRep(2).phases(1)[1], *BATCHNORM)
    assert found
    assert all(name.startswith("backbone.") for name in found)
    assert {"backbone.2.running_mean", "backbone.2.running_var"} <= found


def test_without_being_still_the_statistics_would_move() -> None:
    found = after(Phase(2, trainable=("head.",)), *BATCHNORM)
    assert found - HEAD == {
        *("backbone.2.running_mean", "backbone.2.running_var", "backbone.2.num_batches_tracked")
    }


def test_a_client_finds_its_own_head_again() -> None:
    federation = personalized("fedrep")
    store = federation.engine.resources.store
    list(federation.engine.train([0, 1], federation.server.broadcast(1)))
    mine, others = store.private(0), store.private(1)
    assert mine is not None
    assert others is not None
    assert mine.keys() == HEAD
    assert moved(mine, others) == HEAD
    with store.open(0) as state:
        module = federation.engine.begin(0, federation.server.broadcast(2), state)
    assert not moved(mine, module.weights)


@pytest.mark.parametrize("personalization", ["fedper", "fedrep"])
def test_a_head_without_anything_to_train_is_refused(personalization: str) -> None:
    with pytest.raises(InputError, match="head=etf: has nothing to train"):
        personalized(personalization, "head=etf")
    with pytest.raises(InputError, match="head=prototype: has nothing to train"):
        personalized(personalization, "head=prototype", "head.scale.trainable=false")
