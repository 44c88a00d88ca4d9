"""Compressed downloads: the model that clients have, and bytes of clients that missed rounds."""

from collections.abc import Sequence

import pytest
import torch
from support.compressed_federations import BATCHNORM, SMALL
from support.federations import equal, federate

from fedexp.aggregators.average import Average
from fedexp.compression.compressor import Compressor
from fedexp.compression.download import CompressingServer
from fedexp.compression.half import Half
from fedexp.compression.top_k import TopK
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.server import Server
from fedexp.measures.scoring.scoring import Scoring

TOP_K = ["compression@download=topk", "download.share=0.1"]


def server(
    feedback: bool = True,
    start: Sequence[float] = (1.0, 2.0, 3.0),
    compressor: Compressor | None = None,
) -> CompressingServer:
    """A server of six clients, whose downloads have one of three entries by default."""
    weights = {"w": torch.tensor(start), "seen": torch.tensor(1)}
    parts = {"aggregator": Average("samples")}
    compressor = compressor or TopK(share=1 / 3, error_feedback=feedback)
    return CompressingServer(weights, parts, compressor, {"w"}, seed=0, clients=6)


def step(one: Server, move: Sequence[float], round: int, clients: Sequence[int] = ()) -> Tensors:
    """A round in which a client moves its weights; returns the weights that it started from."""
    message = one.send(round)
    one.sent_to(clients)
    moved = {"w": message.weights["w"] + torch.tensor(move), "seen": torch.tensor(round)}
    one.add(Update(0, 1, moved))
    one.step()
    return message.weights


def test_clients_lag_behind_and_the_server_keeps_the_rest() -> None:
    """By hand: each round the largest entry of w - h is sent."""
    one = server()
    assert step(one, [4.0, 3.0, 0.0], 1)["w"].tolist() == [1, 2, 3]
    assert one.weights["w"].tolist() == [5, 5, 3]
    assert step(one, [0.0, 0.0, 2.0], 2)["w"].tolist() == [5, 2, 3]  # 4 is sent, 3 is not
    assert one.weights["w"].tolist() == [5, 5, 5]
    assert step(one, [0.0, 0.0, 0.0], 3)["w"].tolist() == [5, 5, 3]  # then 3
    assert one.weights["w"].tolist() == [5, 5, 5]
    last = step(one, [0.0, 0.0, 0.0], 4)
    assert last["w"].tolist() == [5, 5, 5]  # then 2
    assert last["seen"].item() == 3  # as it is


def test_without_error_feedback_the_server_forgets_the_rest() -> None:
    one = server(feedback=False)
    step(one, [4.0, 3.0, 0.0], 1)
    assert one.weights["w"].tolist() == [5, 5, 3]
    assert step(one, [0.0, 0.0, 2.0], 2)["w"].tolist() == [5, 2, 3]
    assert one.weights["w"].tolist() == [5, 2, 5]


def test_a_round_without_updates_leaves_the_server_as_it_is() -> None:
    one = server()
    step(one, [4.0, 3.0, 0.0], 1)
    one.send(2)
    one.step()
    assert one.weights["w"].tolist() == [5, 5, 3]
    assert one.send(3).weights["w"].tolist() == [5, 5, 3]


def test_without_error_feedback_too_a_skipped_round_leaves_the_weights() -> None:
    one = server(feedback=False)
    step(one, [4.0, 3.0, 0.0], 1)
    assert one.send(2).weights["w"].tolist() == [5, 2, 3]
    one.step()
    assert one.weights["w"].tolist() == [5, 5, 3]
    assert one.send(3).weights["w"].tolist() == [5, 5, 3]  # what round 2 did not send


@pytest.mark.parametrize("feedback", [True, False])
def test_a_difference_beyond_the_largest_number_sends_the_whole_model(
    feedback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    one = server(feedback, compressor=Half("float16", feedback))
    step(one, [70_000.0, 0.0, 0.0], 1, clients=[0])  # beyond 65504, the largest 16-bit float
    message = one.send(2)
    assert message.weights["w"].tolist() == one.weights["w"].tolist() == [70_001, 2, 3]
    assert "round 2: compression@download" in caplog.text
    assert message.to_client(0).nbytes == 20  # three weights and the integer, as the first time
    assert step(one, [0.0, 1.0, 0.0], 3)["w"].tolist() == [70_001, 2, 3]
    assert one.weights["w"].tolist() == [70_001, 3, 3]


def test_bytes_of_clients_that_missed_rounds() -> None:
    """A code has 4 + 1 bytes, the model 12, and the integer 8, which is needed once."""
    one = server()

    def sizes(round: int, clients: Sequence[int]) -> list[int]:
        message = one.send(round)
        one.sent_to(clients)
        one.step()
        return [message.to_client(client).nbytes for client in range(6)]

    assert sizes(1, [0, 1, 2]) == [20] * 6  # the whole model
    assert sizes(2, [0]) == [13, 13, 13, 20, 20, 20]
    assert sizes(3, [0, 3]) == [13, 18, 18, 20, 20, 20]
    assert sizes(4, [2]) == [13, 20, 20, 13, 20, 20]  # three codes are larger than the model
    assert sizes(5, []) == [18, 20, 13, 18, 20, 20]
    message = one.send(6)
    assert message.bytes_to_each([2, 4]) == {2: 18, 4: 20}
    one.sent_to([2])
    assert message.to_client(2).nbytes == 18  # also when it is asked again in the round


def test_the_state_of_a_server_survives() -> None:
    one, other = server(), server(start=(9.0, 9.0, 9.0))
    for number in (1, 2):
        step(one, [4.0, 3.0, 0.5], number, [number])
    other.load_state_dict(one.state_dict())
    for number in (3, 4):
        for each in (one, other):
            step(each, [0.1, 0.2, -1.0], number, [5])
        assert equal(one.weights, other.weights)
    left, right = one.send(5), other.send(5)
    assert equal(left.weights, right.weights)
    for client in range(6):
        assert left.to_client(client).nbytes == right.to_client(client).nbytes


def test_a_compressor_that_loses_nothing_changes_only_rounding() -> None:
    plain, federation = federate(*SMALL), federate(*SMALL, "compression@download=topk")
    whole: Compressor = TopK(share=1.0, error_feedback=True)
    federation.server = CompressingServer(
        federation.server.weights,
        federation.server.parts,
        whole,
        federation.server.weights.keys(),
        seed=0,
        clients=4,
    )
    for number in (1, 2, 3):
        plain.run_round(number), federation.run_round(number)
    for name, weight in plain.server.weights.items():
        torch.testing.assert_close(federation.server.weights[name], weight, atol=1e-6, rtol=1e-5)


def test_none_is_the_plain_server() -> None:
    assert type(federate(*SMALL).server) is Server


def test_measures_score_the_servers_own_model() -> None:
    federation = federate(*SMALL, *TOP_K)
    for number in (1, 2):
        record = federation.run_round(number)
    held = federation.server.send(3).weights
    assert not equal(held, federation.server.weights)
    scoring = Scoring(federation.engine)
    own, sent = (
        scoring.score_global(Message(2, weights)).metrics("global/{}")
        for weights in (federation.server.weights, held)
    )
    assert record.metrics["global/loss"] == own["global/loss"] != sent["global/loss"]


def test_a_part_s_tensors_for_one_client_come_with_the_compressed_weights() -> None:
    federation = federate(*SMALL, *TOP_K, "algorithm=fedcurv")
    federation.run_round(1)
    message, plain = federation.server.send(2), federation.server.broadcast(2)
    for client in (0, 1):
        own = message.to_client(client)
        assert equal(own.extras["regularizer"], plain.to_client(client).extras["regularizer"])
        assert own.nbytes < plain.to_client(client).nbytes
    sums = [message.to_client(client).extras["regularizer"] for client in (0, 1)]
    assert not equal(*sums)


def test_clients_train_from_the_model_that_they_have() -> None:
    federation = federate(*SMALL, *TOP_K, "local.steps=1", "optimizer.lr=1e-30")
    federation.run_round(1)
    start = federation.server.send(2)
    for update in federation.engine.train(range(4), start):
        assert equal(update.weights, start.weights)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fednh", "fedrep", "fedadam", "fedproto"])
def test_methods_train_with_both_directions(method: str) -> None:
    both = ["compression=topk", "compression.share=0.2", *TOP_K]
    federation = federate(*SMALL, *both, f"algorithm={method}")
    losses = [federation.run_round(each).metrics["train/cross_entropy"] for each in range(1, 5)]
    assert losses[-1] < losses[0]


def test_running_statistics_are_the_servers() -> None:
    federation = federate(*SMALL, *BATCHNORM, "compression@download=signsgd")
    federation.run_round(1)
    weights, held = dict(federation.server.weights), federation.server.send(2).weights
    buffers = [name for name in weights if "running" in name or "num_batches" in name]
    assert buffers
    for name in weights:
        assert torch.equal(held[name], weights[name]) == (name in buffers), name


def test_a_client_that_answers_the_sampler_downloads_too() -> None:
    overrides = ["clients.per_round=1", "sampler=power_of_choice", "sampler.candidates=3"]
    federation = federate(*SMALL, *overrides, *TOP_K)
    first = federation.run_round(1).metrics["cost/download_bytes"]
    whole = sum(weight.numel() * 4 for weight in federation.server.weights.values())
    assert first == 3 * whole
    asked = federation.measures.exchange.receivers
    message = federation.server.send(2)
    smaller = {client for client in range(4) if message.to_client(client).nbytes < whole}
    assert smaller == asked
