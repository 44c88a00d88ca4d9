"""Personal models that are the server's present model, as the parts adapt it."""

import pytest
import torch
from support.federations import equal, federate
from support.small_federations import SMALL, personal, personalized, train

from fedexp.heads.adaptation import adaptation
from fedexp.measures.scoring.scoring import Scoring
from fedexp.testing import check_part


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_every_client_has_the_global_model(engine: str) -> None:
    federation = personalized("received", f"engine={engine}")
    train(federation, 1)
    message = federation.server.broadcast(1)
    whole = Scoring(federation.engine).score_global(message)
    assert whole is not None
    found = personal(federation, 1)
    assert list(found) == [0, 1]
    for own in found.values():
        assert torch.equal(own.correct, whole.correct)
    assert not torch.equal(personal_of_local_training(), whole.correct)


def personal_of_local_training() -> torch.Tensor:
    federation = federate(*SMALL)
    train(federation, 1)
    return personal(federation, 1)[0].correct


def test_training_is_that_of_fedavg() -> None:
    received, plain = personalized("received"), federate(*SMALL)
    for federation in (received, plain):
        federation.run_round(1)
    assert equal(received.server.weights, plain.server.weights)


def test_a_head_that_adapts_to_the_client_is_adapted() -> None:
    federation = personalized("received", "head=adapted_linear")
    train(federation, 1)
    scored = []
    for client, _ in Scoring(federation.engine).score_personal(federation.server.broadcast(1)):
        own = adaptation(federation.data.clients[client].class_counts)
        torch.testing.assert_close(federation.module.head.get_buffer("phi"), own)
        scored.append(client)
    assert scored == [0, 1]


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=received")
