"""Compressed uploads in a federation: bytes, memories, engines, and other parts."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.compressed_federations import BATCHNORM, SMALL
from support.federations import equal, federate

from fedexp.compression.compressor import Compressor
from fedexp.compression.differences import Differences
from fedexp.compression.half import Half
from fedexp.compression.rand_k import RandK
from fedexp.compression.sign_sgd import SignSGD
from fedexp.compression.top_k import TopK
from fedexp.core.messages import Message, Tensors, Update
from fedexp.engines.turn import Trained, end_turns
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.testing import check_part
from fedexp.testing.federations import configure, federation_of, resume

TOP_K = ["compression=topk", "compression.share=0.1"]
OPTIONS = ["topk", "randk", "signsgd", "qsgd", "powersgd", "svd", "fp16", "bf16"]


def names_of(federation: Federation) -> set[str]:
    return {name for name, _ in federation.module.named_parameters()}


def trained(federation: Federation, round: int = 1) -> tuple[Message, dict[int, Update]]:
    """The message of a round, and the updates of all clients, which are not merged."""
    message = federation.server.send(round)
    federation.measures.begin_round(message)
    return message, {each.client: each for each in federation.engine.train(range(4), message)}


def lost(federation: Federation, client: int) -> Tensors:
    return federation.store.memory(client, "compression")


def test_none_has_no_compression_at_all() -> None:
    federation = federate(*SMALL)
    assert federation.engine.resources.upload is None
    _, updates = trained(federation)
    assert updates[0].weights_nbytes is None


def test_the_server_gets_what_an_independent_decoder_gets() -> None:
    plain, federation = federate(*SMALL), federate(*SMALL, *TOP_K)
    message, updates = trained(federation)
    _, whole = trained(plain)
    for client in range(4):
        expected = {}
        for name, weight in whole[client].weights.items():
            difference = (weight - message.weights[name]).flatten()
            k = max(1, len(difference) // 10)
            threshold = difference.abs().sort().values[-k]
            sent = torch.where(difference.abs() >= threshold, difference, 0.0)
            expected[name] = message.weights[name] + sent.view_as(weight)
            assert torch.equal(
                lost(federation, client)[f"{name}/lost"].flatten(), difference - sent
            )
        assert equal(updates[client].weights, expected)


def test_bytes_by_hand() -> None:
    """Of 64 x 200, 200, 200 x 64, 64, 64 x 10 and 10 entries a tenth: values and packed indices."""
    federation = federate(*SMALL, *TOP_K)
    entries = sorted(weight.numel() for weight in federation.server.weights.values())
    expected = sum(
        4 * max(1, n // 10) + -(-max(1, n // 10) * (n - 1).bit_length() // 8) for n in entries
    )
    metrics = federation.run_round(1).metrics
    assert metrics["cost/upload_bytes"] == 4 * expected
    assert metrics["cost/download_bytes"] == 4 * 4 * sum(entries)
    assert metrics["cost/client_memory_bytes"] == 4 * sum(entries)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_trains_with_fewer_bytes(option: str) -> None:
    federation = federate(*SMALL, f"compression={option}")
    whole = 4 * sum(4 * weight.numel() for weight in federation.server.weights.values())
    losses = []
    for number in range(1, 4):
        metrics = federation.run_round(number).metrics
        assert metrics["cost/upload_bytes"] <= whole / 2
        losses.append(metrics["train/loss"])
    assert losses[-1] < losses[0]


@pytest.mark.matrix
@pytest.mark.parametrize("option", OPTIONS)
def test_the_contract_of_parts_holds(option: str) -> None:
    """Resumed, in any order and apart from the server to the bit; in a stack within rounding.

    A rounding that changes which entry is larger, or a sign, changes the entry by its own size.
    """
    tolerance = 5e-3 if option in ("topk", "signsgd", "qsgd") else 1e-4
    check_part(f"compression={option}", "optimizer.lr=0.01", tolerance=tolerance)


def test_stacked_clients_send_what_they_send_one_after_another() -> None:
    overrides = [*SMALL, "compression=powersgd"]
    one, other = federate(*overrides), federate(*overrides, "engine=vectorized")
    for number in (1, 2, 3):
        left, right = one.run_round(number).metrics, other.run_round(number).metrics
        assert left["cost/upload_bytes"] == right["cost/upload_bytes"]
        for name, weight in one.server.weights.items():
            torch.testing.assert_close(other.server.weights[name], weight, atol=1e-5, rtol=1e-5)


def test_the_trainer_engine_sends_the_same_bits() -> None:
    one, other = federate(*SMALL, *TOP_K), federate(*SMALL, *TOP_K, "engine=trainer")
    for number in (1, 2):
        one.run_round(number), other.run_round(number)
    assert equal(one.server.weights, other.server.weights)


@pytest.mark.matrix
@pytest.mark.parametrize("option", OPTIONS)
def test_a_resumed_run_ends_with_the_same_bits(option: str) -> None:
    config = configure([f"compression={option}", f"compression@download={option}"], None)
    with federation_of(config) as whole, federation_of(config) as second:
        whole.run_round(1)
        resume(second, whole)
        for number in (2, 3, 4):
            left, right = whole.run_round(number).metrics, second.run_round(number).metrics
            for name in ("cost/upload_bytes", "cost/download_bytes", "global/loss"):
                assert left[name] == right[name]
        assert equal(whole.server.weights, second.server.weights)


# What is compressed.


def test_buffers_travel_as_they_are() -> None:
    """The running statistics of BatchNorm, and its count of batches."""
    federation = federate(*SMALL, *BATCHNORM, "compression=signsgd")
    plain = federate(*SMALL, *BATCHNORM)
    updates, whole = trained(federation)[1], trained(plain)[1]
    buffers = [name for name in whole[0].weights if name not in names_of(plain)]
    assert any("running_var" in name for name in buffers)
    assert any("num_batches" in name for name in buffers)
    for name in whole[0].weights:
        same = torch.equal(updates[0].weights[name], whole[0].weights[name])
        assert same == (name in buffers), name


def test_fixed_and_private_weights_are_neither_sent_nor_remembered() -> None:
    for overrides in (["model.train=[head]"], ["personalization=fedper"]):
        federation = federate(*SMALL, *TOP_K, *overrides)
        federation.run_round(1)
        remembered = {name.removesuffix("/lost") for name in lost(federation, 0)}
        assert remembered == set(federation.server.weights)
        assert remembered < names_of(federation)


def test_prototypes_and_control_variates_travel_as_they_are() -> None:
    for chosen, socket in (("head=prototype", "head"), ("algorithm=scaffold", "regularizer")):
        updates = trained(federate(*SMALL, *TOP_K, chosen))[1]
        whole = trained(federate(*SMALL, chosen))[1]
        for client, update in updates.items():
            assert update.extras[socket]
            assert equal(update.extras[socket], whole[client].extras[socket])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fednh", "fedrep", "ditto", "fedadmm"])
def test_methods_train_with_compressed_uploads(method: str) -> None:
    federation = federate(*SMALL, *TOP_K, f"algorithm={method}")
    losses = [federation.run_round(each).metrics["train/cross_entropy"] for each in range(1, 5)]
    assert losses[-1] < losses[0]


def test_the_base_is_the_message_to_the_client_alone() -> None:
    """FedAMP sends each client a model of its own; float16 loses little of a small difference."""
    overrides = [*SMALL, "personalization=fedamp"]
    federation, plain = federate(*overrides, "compression=fp16"), federate(*overrides)
    for each in (federation, plain):
        each.run_round(1)
    message, updates = trained(federation, 2)
    _, whole = trained(plain, 2)
    own = [message.to_client(client).weights for client in range(4)]
    assert not equal(own[0], own[1])
    expected = Differences(Half("float16", False), names_of(federation), 0, "", feedback=False)
    for client, update in updates.items():
        sent = expected.encode(update.weights, own[client], {}, 2)
        assert equal(expected.decode(sent, own[client], 2), update.weights)
        for name, weight in whole[client].weights.items():
            torch.testing.assert_close(update.weights[name], weight, atol=1e-3, rtol=0)


def test_a_client_of_ifca_sends_the_difference_to_the_model_that_it_chose() -> None:
    overrides = [*SMALL, "algorithm=ifca", "personalization.clusters=3", "compression=topk"]
    federation = federate(*overrides)
    message, updates = trained(federation)
    for update in updates.values():
        number = int(update.extras["personalization"]["chosen"])
        extras = message.extras["personalization"]
        for name, weight in update.weights.items():
            start = message.weights[name] if number == 0 else extras[f"{number}/{name}"]
            changed = (weight != start).sum().item()
            assert 1 <= changed <= max(1, round(0.01 * weight.numel()))


# What is not finite.


def with_update(federation: Federation, weights: Tensors) -> tuple[Trained, Tensors]:
    """A client that trained these weights."""
    message = federation.server.send(1)
    with federation.store.open(0) as state:
        before = state.copy()
        module = federation.engine.begin(0, message, state)
        module.turn.fitted = {"loss": torch.zeros(())}
        update = Update(0, 1, message.weights | weights)
        return Trained(update, module.turn, state, before), message.weights


@pytest.mark.parametrize(
    "compressor",
    [
        TopK(0.01, error_feedback=True),
        RandK(0.01, unbiased=True, error_feedback=False),
        RandK(0.01, unbiased=False, error_feedback=True),
        SignSGD(error_feedback=True),
        Half("bfloat16", error_feedback=False),
    ],
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_bad_weight_is_found_even_if_it_is_not_sent(compressor: Compressor, bad: float) -> None:
    federation = federate(*SMALL, *TOP_K)
    name = next(iter(federation.server.weights))
    weight = federation.server.weights[name].clone()
    weight.view(-1)[5] = bad
    one, _ = with_update(federation, {name: weight})
    names, feedback = names_of(federation), compressor.error_feedback
    upload = Differences(compressor, names, 0, "compression/upload", feedback)
    resources = replace(federation.engine.resources, upload=upload)
    (ended,) = end_turns([one], resources)
    assert not ended.is_finite
    assert one.state.memory("compression") == {}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_broken_client_is_left_out_and_forgets_the_round(
    option: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*SMALL, "partition=iid", f"compression={option}")
    federation.run_round(1)
    before = lost(federation, 2)
    others = lost(federation, 1)
    data = federation.data
    data.train.inputs[data.clients[2].train_index[0]] = torch.nan
    with caplog.at_level(logging.WARNING):
        metrics = federation.run_round(2).metrics
    assert metrics["clients/quarantined"] == 1
    assert "round 2: the update of client 2 is not finite" in caplog.text
    assert equal(lost(federation, 2), before)
    assert not others or not equal(lost(federation, 1), others)
    assert all(weight.isfinite().all() for weight in federation.server.weights.values())


def test_attackers_change_what_was_decoded() -> None:
    """Byzantine clients send any values in the same bytes; their honest part is compressed."""
    attack = [
        "faults=byzantine",
        "faults.byzantine=1",
        "faults.attack=sign_flip",
        "faults.factor=2",
    ]
    message, updates = trained(federate(*SMALL, *TOP_K, *attack))
    _, honest = trained(federate(*SMALL, *TOP_K))
    for client, update in updates.items():
        assert update.nbytes == honest[client].nbytes
        for name, before in message.weights.items():
            expected = before - 2 * (honest[client].weights[name] - before)
            torch.testing.assert_close(update.weights[name], expected)


# Errors.


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["compression=topk", "compression.share=0"], r"compression\.share=0: .*greater than 0"),
        (["compression=topk", "compression.share=2"], r"compression\.share=2: .*less than or"),
        (["compression=qsgd", "compression.bits=1"], r"compression\.bits=1: .*greater than or"),
        (
            ["compression=randk", "compression.error_feedback=true"],
            r"^compression\.error_feedback=true: the errors",
        ),
        (
            ["compression@download=randk", "download.error_feedback=true"],
            r"^download\.error_feedback=true: the errors",
        ),
        (
            ["compression@download=topk", "personalization=fedamp"],
            "compression@download: this personalization may start clients from other weights",
        ),
        (
            ["compression@download=topk", "algorithm=ifca"],
            "compression@download: this personalization may start clients from other weights",
        ),
        (
            ["compression@download=topk", "algorithm=fedadmm", "regularizer.start=local"],
            "compression@download: this regularizer may start clients from other weights",
        ),
    ],
)
def test_what_cannot_work_is_one_line(overrides: list[str], line: str) -> None:
    build = partial(plan, configure(overrides, None))
    with pytest.raises(InputError, match=line):
        build()
