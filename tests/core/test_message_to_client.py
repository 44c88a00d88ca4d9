"""Messages to one client: two models, of the even and of the odd clients, on one server."""

import pytest
import torch
from support.addressed_parts import OwnModels
from support.federations import federate

from fedexp.core.messages import Message, PartMessage, copied
from fedexp.errors import InputError
from fedexp.testing import check_part

OPTION = "personalization._target_=support.addressed_parts.OwnModels"
SMALL = [OPTION, "clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]


def test_a_message_is_the_same_for_all_clients_by_default() -> None:
    message = federate("clients.count=4", "clients.per_round=2").server.broadcast(1)
    assert message.to_client(3) is message
    assert message.bytes_to_each([1, 2, 3]) == dict.fromkeys([1, 2, 3], message.nbytes)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_each_group_trains_as_if_it_were_alone(engine: str) -> None:
    """With plain SGD, a client's update depends on the message to its own group only."""
    federation = federate(*SMALL, f"engine={engine}", "aggregator=uniform")
    federation.run_round(1)
    message = federation.server.broadcast(2)
    even, odd = (message.to_client(client).weights for client in (2, 1))
    assert not torch.equal(even["backbone.1.0.weight"], odd["backbone.1.0.weight"])
    mean = (even["backbone.1.0.weight"] + odd["backbone.1.0.weight"]) / 2
    torch.testing.assert_close(message.weights["backbone.1.0.weight"], mean)
    alone = federate(*SMALL, f"engine={engine}")
    alone.store.put(1, dict(federation.store.states())[1].copy())
    (update,) = federation.engine.train([1], message)
    (expected,) = alone.engine.train([1], Message(2, odd, {"personalization": _parity(1)}))
    for name, value in expected.weights.items():
        assert torch.equal(value, update.weights[name])


def _parity(client: int) -> dict[str, torch.Tensor]:
    return {"parity": torch.tensor(client % 2)}


def test_weights_that_are_sent_replace_private_weights() -> None:
    federation = federate(*SMALL)
    federation.run_round(1)
    engine, message = federation.engine, federation.server.broadcast(2)
    for client in (0, 2):
        with federation.store.open(client) as state:
            head = engine.begin(client, message, state).head.linear.weight
            assert (client == 0) == (not head.any().item())
        assert (client == 0) == (not engine.begin_tuning(client, message).head.linear.weight.any())


def test_each_message_is_counted_in_bytes() -> None:
    federation = federate(*SMALL)
    record = federation.run_round(1)
    message = federation.server.broadcast(1)
    parity, head = 8, 4 * 10 * 64
    assert message.to_client(1).nbytes == message.nbytes + parity
    assert record.metrics["cost/download_bytes"] == 4 * (message.nbytes + parity) + head


def test_a_message_without_some_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = federate(*SMALL).server.broadcast(1)
    few = PartMessage(1, {"backbone.1.0.bias": torch.zeros(1)}, {})
    monkeypatch.setattr(OwnModels, "message_to", lambda self, client, message: few)
    with pytest.raises(
        InputError,
        match=r"OwnModels\): message_to\(3, \.\.\.\) left out backbone\.1\.0\.weight; it must",
    ):
        message.to_client(3)


def test_a_copy_for_evaluation_is_the_message_to_all() -> None:
    message = federate(*SMALL).server.broadcast(1)
    assert copied(message).readdress is None


@pytest.mark.slow
def test_the_contract() -> None:
    check_part(OPTION)
