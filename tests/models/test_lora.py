"""``model.lora``: W + alpha / r B A, of which A and B are trained, sent and counted."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_alike, begin_client, compose, federate
from support.refusals import refused
from support.resumed_runs import check_resumes_to_the_bit
from torch import nn

from fedexp.models.lora import add_low_rank_updates
from fedexp.runtime.plan import plan

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200"]
LORA = "model.lora.rank=3"  # of 64-128-64
FIRST, SECOND = (f"backbone.1.{layer}.parametrizations.weight" for layer in (0, 2))
OF_HEAD = {"head.linear.weight": (10, 64), "head.linear.bias": (10,)}
SHAPES = {
    f"{FIRST}.0.A": (3, 64),
    f"{FIRST}.0.B": (128, 3),
    f"{SECOND}.0.A": (3, 128),
    f"{SECOND}.0.B": (64, 3),
    **OF_HEAD,
}


def test_it_starts_as_the_model_without() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    inputs = torch.randn(3, 6)
    before = network(inputs)
    add_low_rank_updates(network, rank=2, alpha=8.0, targets=["*"])
    assert torch.equal(network(inputs), before)


def test_the_formula() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5)
    network = nn.Sequential(layer)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    add_low_rank_updates(network, rank=2, alpha=8.0, targets=["0"])
    update: Any = layer.parametrizations.weight[0]  # type: ignore[union-attr,index]
    a, b = torch.randn(2, 6), torch.randn(5, 2)
    update.A.data, update.B.data = a, b
    inputs = torch.randn(3, 6)
    expected = inputs @ weight.T + 8 / 2 * (inputs @ a.T) @ b.T + bias
    torch.testing.assert_close(network(inputs), expected)
    trained = [name for name, value in network.named_parameters() if value.requires_grad]
    assert trained == ["0.bias", "0.parametrizations.weight.0.A", "0.parametrizations.weight.0.B"]


def test_targets_are_patterns_of_names() -> None:
    network = nn.Sequential()
    for name in ("query", "value", "output"):
        block = nn.Sequential()
        block.add_module(name, nn.Linear(4, 4))
        network.add_module(f"block_{name}", block)
    add_low_rank_updates(network, rank=1, alpha=1.0, targets=["*.query", "*.val*"])
    given = {n.split(".")[1] for n, _ in network.named_parameters() if n.endswith(".A")}
    assert given == {"query", "value"}


def test_only_a_b_and_the_head_are_sent_and_counted() -> None:
    federation = federate(*SMALL, LORA)
    weights = federation.server.weights
    assert {name: tuple(value.shape) for name, value in weights.items()} == SHAPES
    plain = federate(*SMALL).server.weights
    module = federation.module
    for layer in (0, 2):  # the same first weights as without
        original = module.get_parameter(f"backbone.1.{layer}.parametrizations.weight.original")
        assert torch.equal(original, plain[f"backbone.1.{layer}.weight"])
    before = {name: value.clone() for name, value in module.named_parameters()}
    record = federation.run_round(1)
    count = 3 * (64 + 128) + 3 * (128 + 64) + 64 * 10 + 10
    assert record.metrics["cost/upload_bytes"] == 2 * 4 * count
    assert record.metrics["cost/download_bytes"] == 2 * 4 * count
    for name, value in module.named_parameters():
        assert (name in SHAPES) != torch.equal(value, before[name]), name


def test_fedavg_averages_a_and_b() -> None:
    """Two clients, one step each, against gradients of the formula by hand."""
    one = ["clients.count=2", "clients.per_round=2", "local.epochs=1", "data.subset=80"]
    one += ["local.batch_size=100", "optimizer.momentum=0", "optimizer.weight_decay=0"]
    federation = federate(*one, LORA, "model.lora.alpha=6", "optimizer.lr=0.1")
    module, message = federation.module, federation.server.broadcast(1)
    start = {name: value.clone() for name, value in message.weights.items()}
    first, second = (module.get_parameter(f"{name}.original") for name in (FIRST, SECOND))
    biases = [module.get_parameter(f"backbone.1.{layer}.bias") for layer in (0, 2)]
    total: dict[str, torch.Tensor] = {}
    for client in (0, 1):
        data = begin_client(federation.engine, client, message).data
        (inputs, targets), *rest = data.batches(100)
        assert not rest
        leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
        w1 = first + 2 * leaves[f"{FIRST}.0.B"] @ leaves[f"{FIRST}.0.A"]
        w2 = second + 2 * leaves[f"{SECOND}.0.B"] @ leaves[f"{SECOND}.0.A"]
        hidden = F.relu(inputs.flatten(1) @ w1.T + biases[0])
        z = F.relu(hidden @ w2.T + biases[1])
        logits = z @ leaves["head.linear.weight"].T + leaves["head.linear.bias"]
        gradients = torch.autograd.grad(F.cross_entropy(logits, targets), list(leaves.values()))
        for (name, value), gradient in zip(leaves.items(), gradients, strict=True):
            step = data.num_samples * (value.detach() - 0.1 * gradient)
            total[name] = total.get(name, torch.zeros(())) + step
    federation.run_round(1)
    for name, value in federation.server.weights.items():
        torch.testing.assert_close(value, total[name] / 80, rtol=1e-4, atol=1e-6)
    assert (federation.server.weights[f"{FIRST}.0.B"] != 0).any()


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "moon", "ditto"])
def test_engines_agree(algorithm: str) -> None:
    options = [*SMALL, LORA, f"algorithm={algorithm}"]
    assert_alike(federate(*options), federate(*options, "engine=vectorized"), rounds=2)


def test_other_layers_may_train_too() -> None:
    shared = federate(*SMALL, LORA, "model.train=[backbone.1.0.bias]").server.weights
    assert shared.keys() == SHAPES.keys() - OF_HEAD.keys() | {"backbone.1.0.bias"}


def test_it_learns() -> None:
    """More than the head alone, on features of random layers, which reaches 0.74."""
    options = ["partition=iid", "clients.count=4", "clients.per_round=2", "local.epochs=2"]
    federation = federate("model.lora.rank=8", *options, "measure.personal=null")
    for round in range(1, 6):
        record = federation.run_round(round)
    assert record.metrics["global/accuracy"] > 0.85


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.lora.rank=65"],
            r"^model\.lora\.rank=65: is above the smaller width of 1\.0, \[128, 64\]",
        ),
        (
            [LORA, "model.lora.targets=['*.qkv']"],
            r"^model\.lora\.targets=\*\.qkv: no linear layer .* there are 1\.0, 1\.2$",
        ),
        (["model=logistic", LORA], r"^model\.lora\.targets=\*: .* there are none$"),
        (["model.lora.rank=0"], r"^model\.lora\.rank=0: "),
        (
            ["+model.lora.rang=1"],
            r"^model\.lora\.rang: unknown key; there are alpha, rank, targets$",
        ),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with refused(message):
        plan(compose(*overrides))


def test_resumes_to_the_bit(tmp_path: Path) -> None:
    check_resumes_to_the_bit(tmp_path, LORA, "algorithm=scaffold", "optimizer.momentum=0")
