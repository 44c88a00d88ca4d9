from typing import Any

import pytest
import torch
from support.federations import federate, take_step
from support.plain_loop import EPOCHS, LR, SETTING, PlainLoop, assert_same
from support.small_federations import BATCHNORM, copy, moved, personalized

from fedexp.core.messages import Tensors
from fedexp.core.sockets import Phase
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.personalization.fedrep import FedRep

HEAD = {"head.linear.weight", "head.linear.bias"}


def test_head_first_then_body() -> None:
    head, body = FedRep(7, "none").phases(3)
    assert (head.epochs, head.trainable) == (7, ("head.",))
    assert (body.epochs, body.trainable) == (3, ("backbone.", "loss."))
    engine: Any = personalized("fedrep").engine
    assert [phase.epochs for phase in engine.resources.personalization.phases(1)] == [10, 1]


def after(phase: Phase, *overrides: str) -> set[str]:
    """Names of the weights and buffers that one phase moves."""
    federation = personalized("fedrep", *overrides)
    engine, message = federation.engine, federation.server.broadcast(1)
    with federation.store.open(0) as state:
        module = engine.begin(0, message, state)
    before = copy(module.weights)
    engine.fit(module, [phase])
    return moved(before, module.weights)


def test_the_body_does_not_move_in_the_first_phase_nor_its_statistics() -> None:
    assert after(FedRep(2, "none").phases(1)[0], *BATCHNORM) == HEAD


def test_the_head_does_not_move_in_the_second_phase() -> None:
    found = after(FedRep(2, "none").phases(1)[1], *BATCHNORM)
    assert found
    assert all(name.startswith("backbone.") for name in found)
    assert {"backbone.2.running_mean", "backbone.2.running_var"} <= found


def test_without_eval_mode_the_statistics_would_move() -> None:
    found = after(Phase(2, trainable=("head.",)), *BATCHNORM)
    assert found - HEAD == {
        *("backbone.2.running_mean", "backbone.2.running_var", "backbone.2.num_batches_tracked")
    }


def test_a_client_finds_its_own_head_again() -> None:
    federation = personalized("fedrep")
    store = federation.store
    list(federation.engine.train([0, 1], federation.server.broadcast(1)))
    first, second = store.private(0), store.private(1)
    assert first is not None
    assert second is not None
    assert first.keys() == HEAD
    assert moved(first, second) == HEAD
    with store.open(0) as state:
        module = federation.engine.begin(0, federation.server.broadcast(2), state)
    assert not moved(first, module.weights)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_two_rounds_by_a_plain_loop(engine: str) -> None:
    """A client's own head learns for three epochs, then the body that it received for two."""
    words = ["algorithm=fedrep", "personalization.head_epochs=3"]
    federation, loop = federate(*SETTING, *words, f"engine={engine}"), PlainLoop(*words)
    initial = copy(federation.engine.resources.initial)
    body = {n: w for n, w in initial.items() if n not in HEAD}
    models: dict[int, Tensors] = {}
    for round, cohort in loop.cohorts(2):
        for k in cohort:
            y = {n: body.get(n, models.get(k, initial)[n]) for n in initial}
            batches = loop.batches(round, k, 3 + EPOCHS)
            for step, batch in enumerate(batches):
                trained = HEAD if step < 3 * len(batches) // (3 + EPOCHS) else body.keys()
                g = loop.gradient(y, batch)
                y = {n: w - LR * g[n] if n in trained else w for n, w in y.items()}
            models[k] = y
        body = loop.mean(models, cohort, body)
        federation.run_round(round)
    assert_same(federation.server.weights, body)
    for k, y in models.items():
        assert_same(copy(federation.store.model(k)), y)


@pytest.mark.parametrize("personalization", ["fedper", "fedrep"])
def test_a_head_without_anything_to_train_is_refused(personalization: str) -> None:
    with pytest.raises(InputError, match="head=etf: trains nothing"):
        personalized(personalization, "head=etf")
    with pytest.raises(InputError, match="head=prototype: trains nothing"):
        personalized(personalization, "head=prototype", "head.scale.trainable=false")


@pytest.mark.parametrize("personalization", ["fedper", "fedrep"])
def test_the_global_model_may_be_the_averaged_body_with_the_initial_head(
    personalization: str,
) -> None:
    federation = personalized(personalization, "personalization.global_model=initial_head")
    engine: Any = federation.engine
    initial = copy(engine.resources.initial)
    updates = list(engine.train([0, 1], federation.server.broadcast(1)))
    take_step(federation.server, updates)
    sizes = [update.num_samples for update in updates]
    module = federation.module
    for name in initial.keys() - HEAD:
        mean = sum(n * u.weights[name] for n, u in zip(sizes, updates, strict=True)) / sum(sizes)
        module.load({name: mean})
    module.load({name: initial[name] for name in HEAD})
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    labels = federation.data.test.labels
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(module.eval()(inputs), labels).item()
    found = Scoring(engine).score_global(federation.server.broadcast(1))
    assert found.loss == pytest.approx(expected, rel=1e-5)


def test_a_global_model_can_be_the_objective() -> None:
    options = ["personalization.global_model=initial_head", "objective=global/accuracy", "rounds=1"]
    assert 0 <= personalized("fedper", *options).run_round(1).metrics["global/accuracy"] <= 1
