"""FedBN and SiloBN: which weights stay, and what a client keeps."""

import pytest
import torch
from support.federations import begin_client, federate, take_step
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import BATCHNORM, SMALL, copy, moved, personalized
from torch import nn

from fedexp.core.messages import Tensors
from fedexp.core.sockets import Network
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.personalization.private_norm import PrivateNorm

AFFINE = {"backbone.2.weight", "backbone.2.bias"}
STATISTICS = {f"backbone.2.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize(
    ("option", "private"), [("fedbn", AFFINE | STATISTICS), ("silobn", STATISTICS)]
)
def test_what_is_sent_and_what_stays(option: str, private: set[str]) -> None:
    federation = personalized(option, *BATCHNORM)
    message = federation.server.broadcast(1)
    assert AFFINE | STATISTICS | message.weights.keys() == private | message.weights.keys()
    assert not private & message.weights.keys()
    updates = list(federation.engine.train([0, 1], message))
    assert all(update.weights.keys() == message.weights.keys() for update in updates)
    kept = [federation.store.private(client) for client in (0, 1)]
    assert all(each is not None and each.keys() == private for each in kept)


def test_a_client_goes_on_with_its_own_layers_and_the_rest_is_averaged() -> None:
    federation = personalized("fedbn", *BATCHNORM, "clients.per_round=4")
    federation.run_round(1)
    before = {client: dict(federation.store.private(client) or {}) for client in (0, 1)}
    federation.run_round(2)
    for client, old in before.items():
        new = federation.store.private(client)
        assert new is not None
        assert moved(old, new) == old.keys()
        assert new["backbone.2.num_batches_tracked"] == 2 * old["backbone.2.num_batches_tracked"]
    one, other = before.values()
    assert not torch.equal(one["backbone.2.running_mean"], other["backbone.2.running_mean"])


@pytest.mark.parametrize("option", ["fedbn", "silobn"])
def test_the_next_turn_starts_from_the_mean_and_the_own_layers(option: str) -> None:
    federation = personalized(option, *BATCHNORM)
    updates = list(federation.engine.train([0, 1], federation.server.broadcast(1)))
    total = sum(update.num_samples for update in updates)
    mean = {
        name: sum(each.num_samples / total * each.weights[name] for each in updates)
        for name in updates[0].weights
    }
    take_step(federation.server, updates)
    message = federation.server.broadcast(2)
    assert_same(message.weights, mean, 1e-6)
    for client in (0, 1):
        private = copy(federation.store.private(client) or {})
        assert private
        start = begin_client(federation.engine, client, message).weights
        assert_same(start, dict(message.weights) | private, 0)


@pytest.mark.parametrize("engine", ["serial", "trainer"])
def test_two_rounds_of_fedbn_by_a_plain_loop(engine: str) -> None:
    words = ["algorithm=fedbn", "model.batch_norm=true"]
    federation, loop = federate(*SETTING, *words, f"engine={engine}"), PlainLoop(*words)
    model = loop.federation.global_model(0).train()
    trained = [name for name, _ in model.named_parameters()]
    initial = copy(loop.federation.engine.resources.initial)
    shared = {n: w for n, w in initial.items() if not n.startswith("backbone.1.1.")}
    models: dict[int, Tensors] = {}
    for round, cohort in loop.cohorts(2):
        for k in cohort:
            y = copy(models.get(k, initial) | shared)
            for inputs, targets in loop.batches(round, k):
                w = {n: v.requires_grad_() if n in trained else v for n, v in y.items()}
                logits = torch.func.functional_call(model, w, (inputs,))  # moves the statistics
                loss = nn.functional.cross_entropy(logits, targets)
                slopes = torch.autograd.grad(loss, [w[name] for name in trained])
                steps = {n: w[n] - LR * g for n, g in zip(trained, slopes, strict=True)}
                y = copy(w | steps)
            models[k] = y
        shared = loop.mean(models, cohort, shared)
        federation.run_round(round)
    assert_same(federation.server.weights, shared)
    for k, y in models.items():
        assert_same(copy(federation.store.model(k)), y)


def test_group_norm_has_nothing_to_keep() -> None:
    network = Network(nn.Sequential(nn.GroupNorm(2, 4)), Linear(4, 2, bias=True), 4, 2)
    with pytest.raises(InputError, match=r"personalization\.keeps=layers: this model has no Batch"):
        PrivateNorm("layers").create(network, CrossEntropy())


def test_without_running_statistics_there_are_only_layers() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    network = Network(nn.Sequential(norm), Linear(4, 2, bias=True), 4, 2)
    part = PrivateNorm("layers")
    part.create(network, CrossEntropy())
    assert not part.shared("backbone.0.weight")
    with pytest.raises(InputError, match="no running statistics"):
        PrivateNorm("statistics").create(network, CrossEntropy())


def test_a_model_without_batchnorm_is_refused_before_data_is_read() -> None:
    with pytest.raises(InputError, match="use a model with BatchNorm"):
        personalized("fedbn", *SMALL)
