"""FLTrust by hand, its server's training by a plain loop, and small federations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate
from torch import nn

from fedexp.aggregators.fltrust import FLTrust, compared
from fedexp.core.messages import Tensors, Update
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

SMALL = ["clients.count=5", "clients.per_round=5", "local.epochs=2", "data.subset=300", "rounds=3"]
FLTRUST = ["aggregator=fltrust", "aggregator.samples=40"]


class Given(FLTrust):
    """The server's own step is given."""

    def __init__(self, own: Tensors, lr: float = 1.0) -> None:
        super().__init__(1, False, 1, None, 1, None, lr)
        self.own = own

    def _trained(self, current: Tensors, round: int) -> Tensors:
        return self.own


def merged(aggregator: FLTrust, current: Tensors, *updates: Update) -> Tensors:
    for each in updates:
        aggregator.add(each, current)
    return aggregator.merge(current)


OWN = {"a": torch.tensor([3.0], dtype=torch.float64), "b": torch.tensor(4.0, dtype=torch.float64)}
START = {"a": torch.tensor([1.0]), "b": torch.tensor(1.0), "mean": torch.tensor([10.0])}


def update(client: int, a: float, b: float, mean: float = 0.0, draws: int = 1) -> Update:
    weights = {"a": torch.tensor([1 + a]), "b": torch.tensor(1 + b), "mean": torch.tensor([mean])}
    return Update(client, 1, weights, draws=draws)


def test_the_global_step_by_hand() -> None:
    """Own step (3, 4). The cosines of (6, 8), (-3, -4), (8, 6), (0, 0) are 1, -1, 24/25, 0."""
    rule = Given(OWN, lr=0.5)
    cohort = [update(0, 6, 8, 20), update(1, -3, -4, -99), update(2, 8, 6, 30), update(3, 0, 0, 7)]
    found = merged(rule, START, *cohort)
    assert found["a"].item() == pytest.approx(1 + 0.5 * (3 + 0.96 * 4) / 1.96)
    assert found["b"].item() == pytest.approx(1 + 0.5 * (4 + 0.96 * 3) / 1.96)
    assert found["mean"].item() == pytest.approx((20 + 0.96 * 30) / 1.96)  # not rescaled
    assert rule.metrics() == {"aggregator/trusted": 0.5}


def test_a_client_drawn_twice_counts_twice() -> None:
    twice = merged(Given(OWN), START, update(0, 6, 8), update(1, 8, 6, draws=2))
    once = merged(Given(OWN), START, update(0, 6, 8), update(1, 8, 6), update(2, 8, 6))
    assert torch.equal(twice["a"], once["a"])


def test_without_a_trusted_client_the_weights_stay() -> None:
    found = merged(Given(OWN), START, update(0, -6, -8), update(1, -8, 0), update(2, 4, -3))
    assert all(torch.equal(found[name], value) for name, value in START.items())


def test_cosines_of_steps() -> None:
    own = {"w": torch.tensor([1.0, 0.0])}
    steps = {"w": torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 1.0], [0.0, 0.0]])}
    cosines, lengths, length = compared(steps, own)
    assert cosines.tolist() == pytest.approx([1, 0, -(0.5**0.5), 0])
    assert lengths.tolist() == pytest.approx([2, 3, 2**0.5, 0])
    assert length.item() == 1


def rule_of(federation: Federation) -> FLTrust:
    rule = federation.server.aggregator
    assert isinstance(rule, FLTrust)
    return rule


@pytest.mark.parametrize(
    ("length", "steps"),
    [(["local.epochs=2"], 6), (["local.epochs=0.5"], 2), (["local.steps=4"], 4)],
    ids=["epochs", "half an epoch", "steps"],
)
def test_the_server_trains_as_a_client_does(length: list[str], steps: int) -> None:
    """SGD with momentum and clipping on a linear model, by a plain loop."""
    options = [
        "model=custom",
        "model._target_=support.federations.flatten",
        "optimizer.momentum=0.5",
    ]
    options += ["local.grad_clip=0.3", "schedule=exponential", "local.batch_size=16"]
    federation = federate(*SMALL, *FLTRUST, *options, *length)
    rule, start = rule_of(federation), federation.server.weights
    found = rule._trained(start, round=2)
    assert rule._root is not None
    inputs, labels = rule._root
    layer = nn.Linear(64, 10)
    layer.load_state_dict({n.removeprefix("head.linear."): w for n, w in start.items()})
    before = [value.detach().clone() for value in layer.parameters()]
    rate = federation.engine.resources.module.optimizer([nn.Parameter(torch.zeros(1))], 2)
    optimizer = torch.optim.SGD(
        layer.parameters(), lr=rate.param_groups[0]["lr"], momentum=0.5, weight_decay=0.0
    )
    order = torch_generator(0, "root_batches", 2)
    epochs = [torch.randperm(40, generator=order).split(16) for _ in range(2)]
    for index in [*epochs[0], *epochs[1]][:steps]:
        optimizer.zero_grad()
        F.cross_entropy(layer(inputs[index].flatten(1)), labels[index]).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 0.3)
        optimizer.step()
    for (name, after), old in zip(layer.named_parameters(), before, strict=True):
        expected = (after.detach() - old).double()
        torch.testing.assert_close(found[f"head.linear.{name}"], expected, atol=1e-6, rtol=0)
        assert expected.abs().max() > 0.0001


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
@pytest.mark.parametrize("options", [["algorithm=fednh"], ["regularizer=proximal"]])
def test_the_engines_agree(options: list[str], engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, *FLTRUST, *options], rounds=2)


def test_clients_that_turn_their_step_round_are_not_trusted() -> None:
    attack = ["faults=byzantine", "faults.byzantine=0.4", "faults.attack=sign_flip"]
    federation = federate(*SMALL, *FLTRUST, *attack, "partition=iid")
    found = [federation.run_round(round).metrics["aggregator/trusted"] for round in (1, 2)]
    assert found == [0.6, 0.6]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["personalization=fedper"], r"aggregator=fltrust: .* head\.\S+ is not sent; use a"),
        (["algorithm=creff"], r"aggregator=fltrust: .* this head has a classifier that no client"),
        (["data=synthetic", "model=logistic"], r"aggregator=fltrust: draws its root dataset from"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(overrides: list[str], reason: Any) -> None:
    with pytest.raises(InputError, match=reason):
        federate("aggregator=fltrust", *overrides)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part(*FLTRUST)
    check_part(*FLTRUST, "algorithm=scaffold", "aggregator=fltrust")
