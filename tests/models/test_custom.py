"""Networks from outside fedexp, and the linear model."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, compose, federate
from support.own_networks import Small
from support.refusals import refused

from fedexp.errors import InputError
from fedexp.runtime.plan import plan

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=100"]
OWN = ["model=custom", "model._target_=support.own_networks.Small"]


def test_a_network_from_outside_gives_features() -> None:
    federation = federate(*SMALL, *OWN, "+model.width=5")
    module = federation.module
    assert isinstance(module.backbone, Small)
    assert module.head(torch.zeros(2, 5)).shape == (2, 10)
    before = {name: value.clone() for name, value in federation.server.weights.items()}
    assert before.keys() == {
        *(f"backbone.{layer}.{kind}" for layer in ("first", "last") for kind in ("weight", "bias")),
        *("head.linear.weight", "head.linear.bias"),
    }
    federation.run_round(1)
    changed = [
        name for name, old in before.items() if (federation.server.weights[name] != old).any()
    ]
    assert changed == list(before)


def test_a_network_from_outside_gives_logits() -> None:
    """One SGD step is that of the network alone under cross-entropy."""
    one = ["clients.count=1", "clients.per_round=1", "data.subset=50", "local.batch_size=50"]
    federation = federate(*one, *OWN, "+model.width=10", "head=identity", "optimizer.momentum=0")
    resources = federation.engine.resources
    assert all(name.startswith("backbone.") for name in federation.server.weights)
    module = begin_client(federation.engine, 0, federation.server.broadcast(1))
    inputs, targets = next(iter(module.data.batches(50)))
    network = Small(10)
    network.load_state_dict({n.removeprefix("backbone."): w for n, w in resources.initial.items()})
    rate = module.optimizer.learning_rate(1)
    assert resources.local.epochs == 5
    decay = compose(*one).optimizer.node["weight_decay"]
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, weight_decay=decay)
    for _ in range(5):  # one batch an epoch
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    federation.run_round(1)
    for name, value in network.named_parameters():
        trained = federation.server.weights[f"backbone.{name}"]
        torch.testing.assert_close(trained, value.data, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=custom"], r"^model\._target_: must be given"),
        (
            ["model=custom", "model._target_=support.own_networks.Smal"],
            r"^model\._target_=support\.own_networks\.Smal: ",
        ),
        ([*OWN], r"^model\.width: is missing$"),
        ([*OWN, "+model.widht=3"], r"^model\.widht: unknown key; there are bias, width$"),
        (
            [*OWN, "+model.width=3", "head=identity"],
            r"^head=identity: the model gives 3 outputs for 10",
        ),
        (
            ["model=custom", "model._target_=support.own_networks.Pair", "+model.width=3"],
            r"^model: Pair does not fit inputs of 1x8x8 \(it returns a tuple, not a tensor "
            r"\[B, d\]\); return the features alone$",
        ),
        (
            ["model=custom", "model._target_=torch.nn.Module"],
            r"^model: Module does not fit .*; define forward\(x\)$",
        ),
        (
            ["model=custom", "model._target_=torch.nn.Identity"],
            r"^model: Identity .*\[2, 1, 8, 8\].*; end forward with pooling or flatten$",
        ),
        (
            ["model=custom", "model._target_=support.own_networks.not_a_network"],
            r"^model\._target_=support\.own_networks\.not_a_network: should be a subclass of "
            r"torch\.nn\.Module, or a function that is annotated to return torch\.nn\.Module$",
        ),
        (
            ["model=custom", "model._target_=support.own_networks.wrongly_annotated"],
            r"^model\._target_: returns a list, no nn\.Module$",
        ),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with refused(message):
        plan(compose(*overrides))


@pytest.mark.parametrize(
    ("width", "head", "warns"), [(10, "linear", True), (10, "identity", False), (9, "etf", False)]
)
def test_a_head_on_top_of_logits_is_one_warning(
    width: int, head: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plan(compose(*OWN, f"+model.width={width}", f"head={head}"))
    assert ("10 outputs for 10 classes; if they are logits" in caplog.text) == warns


def test_logistic_regression_is_its_head() -> None:
    federation = federate(*SMALL, "model=logistic")
    assert {n: tuple(w.shape) for n, w in federation.server.weights.items()} == {
        "head.linear.weight": (10, 64),
        "head.linear.bias": (10,),
    }
    record = federation.run_round(1)
    assert record.metrics["cost/upload_bytes"] == 2 * 4 * (10 * 64 + 10)


@pytest.mark.parametrize("personalization", ["fedbabu", "fedrep"])
def test_a_body_without_parameters_cannot_be_trained_alone(personalization: str) -> None:
    with pytest.raises(InputError, match="no parameter of the backbone to train"):
        plan(compose("model=logistic", f"personalization={personalization}"))
