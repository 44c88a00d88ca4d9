"""A client that chooses the weights of its turn."""

import pytest
import torch
from support.federations import begin_client, federate

from fedexp.core.messages import Message
from fedexp.testing import check_part

OPTION = "personalization._target_=support.choosing_parts.OddClientsStartFromZero"
SMALL = [OPTION, "clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
NAME = "head.linear.weight"


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_client_trains_as_if_the_server_had_sent_the_weights(engine: str) -> None:
    """So the loss and the regularizer compare with the chosen weights."""
    method = [f"engine={engine}", "loss=ntd", "regularizer=proximal"]
    federation, plain = federate(*SMALL, *method), federate(*SMALL[1:], *method)
    message = federation.server.broadcast(1)
    zeros = {NAME: torch.zeros_like(message.weights[NAME])}
    sent = {0: message, 1: Message(1, message.weights | zeros)}
    for client, own in sent.items():
        (update,) = federation.engine.train([client], message)
        (expected,) = plain.engine.train([client], own)
        for name, value in expected.weights.items():
            torch.testing.assert_close(update.weights[name], value, rtol=0, atol=1e-6)


def test_a_sampler_asks_the_model_that_the_client_chose() -> None:
    federation = federate(*SMALL, "sampler=power_of_choice")
    message = federation.server.broadcast(1)
    zeros = {NAME: torch.zeros_like(message.weights[NAME])}
    answers = dict(federation.engine.probe([0, 1], message))
    expected = dict(federation.engine.probe([0], Message(1, message.weights | zeros)))
    assert not answers[0]["loss"].equal(expected[0]["loss"])
    expected = dict(
        federate(*SMALL[1:], "sampler=power_of_choice").engine.probe(
            [1], Message(1, message.weights | zeros)
        )
    )
    assert answers[1]["loss"].equal(expected[1]["loss"])


def test_a_byzantine_client_turns_its_step_from_the_weights_that_it_chose() -> None:
    attack = ["faults=byzantine", "faults.byzantine=1.0", "faults.attack=sign_flip"]
    honest, attacked = federate(*SMALL), federate(*SMALL, *attack)
    message = honest.server.broadcast(1)
    (step,) = (update.weights[NAME] for update in honest.engine.train([1], message))
    (update,) = attacked.engine.train([1], message)
    factor = attacked.engine.resources.faults.factor  # type: ignore[attr-defined]
    torch.testing.assert_close(update.weights[NAME], -factor * step)


def test_the_choice_is_made_for_tuning_too() -> None:
    federation = federate(*SMALL)
    message = federation.server.broadcast(1)
    assert begin_client(federation.engine, 2, message).weights[NAME].any()
    assert not begin_client(federation.engine, 1, message).weights[NAME].any()
    assert not federation.engine.begin_tuning(1, message).weights[NAME].any()


@pytest.mark.slow
def test_the_contract() -> None:
    check_part(OPTION)
