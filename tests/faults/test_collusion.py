"""Attacks of colluding clients: their steps by hand and by plain loops, and whole rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from support.federations import assert_engine_agrees, federate, weights_after
from torch import Tensor

from fedexp.core.messages import Message, Update
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.faults.collusion import (
    Direction,
    collude,
    inner_product,
    little_is_enough,
    min_max,
    most_deviations,
)
from fedexp.faults.injected import Injected

SMALL = ["clients.count=6", "clients.per_round=6", "local.epochs=1", "data.subset=300"]
BYZANTINE = ["faults=byzantine", "faults.byzantine=0.34"]  # two of six
JOINT = ["little_is_enough", "inner_product", "min_max"]


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.5


def test_little_is_enough_by_hand() -> None:
    # Means 2, 5; population deviations sqrt(2 / 3) * 1 and 3
    steps = torch.tensor([[1.0, 2.0], [2.0, 5.0], [3.0, 8.0]], dtype=torch.float64)
    root = (2 / 3) ** 0.5
    found = little_is_enough(steps, 9, 4, given=1.5)
    assert found.tolist() == pytest.approx([2 - 1.5 * root, 5 - 4.5 * root])


@pytest.mark.parametrize(
    ("updates", "attackers", "share"),
    # s = n // 2 + 1 - m: 50 // 2 + 1 - 24 = 2 of 26 honest; 51 // 2 + 1 - 12 = 14 of 39
    [(50, 24, 24 / 26), (51, 12, 25 / 39), (10, 4, 4 / 6)],
)
def test_the_deviations_are_a_normal_quantile(updates: int, attackers: int, share: float) -> None:
    assert most_deviations(updates, attackers) == pytest.approx(norm.ppf(share))


def test_deviations_of_very_few_and_of_very_many_attackers() -> None:
    assert most_deviations(10, 1) == 0  # five of nine would have to follow
    assert most_deviations(10, 6) == pytest.approx(norm.ppf(3 / 4))  # one follower
    assert most_deviations(2, 1) == most_deviations(3, 3) == 0


def test_inner_product_is_the_mean_turned_round() -> None:
    steps = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    assert inner_product(steps, 3, 1, factor=0.5).tolist() == [-1.0, 0.5]


def test_min_max_by_hand() -> None:
    # Steps 1 and 3 are 2 apart; from the mean 2 the unit direction leads to 3 - 2 = 1
    steps = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    assert min_max(steps, 3, 1).item() == pytest.approx(1.0)


@pytest.mark.parametrize("direction", ["unit", "std", "sign"])
def test_min_max_is_the_search_of_the_paper(direction: Direction) -> None:
    steps = normal(7, 40)
    points = steps.numpy()
    mean = points.mean(axis=0)
    p = {
        "unit": -mean / np.linalg.norm(mean),
        "std": -points.std(axis=0),
        "sign": -np.sign(mean),
    }[direction]
    largest = max(np.linalg.norm(a - b) for a in points for b in points)
    gamma, step, last = 10.0, 5.0, 0.0  # Alg. 1: the gamma found last, halving the step
    while abs(last - gamma) > 1e-9:
        if max(np.linalg.norm(mean + gamma * p - each) for each in points) <= largest:
            last, gamma = gamma, gamma + step
        else:
            gamma -= step
        step /= 2
    np.testing.assert_allclose(min_max(steps, 9, 2, direction), mean + last * p, atol=1e-6)


def test_min_max_of_one_known_step_is_that_step() -> None:
    steps = normal(1, 5)
    for direction in ("unit", "std", "sign"):
        torch.testing.assert_close(min_max(steps, 2, 1, direction), steps[0])
    assert min_max(torch.zeros(3, 2), 4, 1).tolist() == [0.0, 0.0]


MESSAGE = Message(3, {"w": torch.tensor([1.0, 1.0]), "running_var": torch.tensor([2.0])})


def update(client: int, w: Sequence[float], **changes: Any) -> Update:
    return Update(client, 10, {"w": torch.tensor(w), "running_var": torch.tensor([5.0])}, **changes)


def mean_step(steps: Tensor, updates: int, attackers: int) -> Tensor:
    """The mean, and the two numbers as its coordinates' thousands."""
    return steps.mean(dim=0) + 1000 * torch.tensor([updates, attackers])


def attacked(*updates: Update, knows: Any = "honest", message: Message = MESSAGE) -> list[Update]:
    return list(collude(updates, message, {1, 2}, {"w"}, mean_step, knows))


def test_attackers_wait_for_the_cohort_and_send_one_step() -> None:
    found = attacked(
        update(2, [9.0, 9.0]), update(0, [2.0, 3.0]), update(1, [7.0, 7.0]), update(5, [4.0, 5.0])
    )
    assert [each.client for each in found] == [0, 5, 1, 2]
    for attacker in found[2:]:
        # Honest steps (1, 2) and (3, 4); four updates, two of attackers
        assert attacker.weights["w"].tolist() == [1 + 2 + 4000, 1 + 3 + 2000]
        assert attacker.weights["running_var"].item() == 5
    assert found[0].weights["w"].tolist() == [2.0, 3.0]


def test_attackers_who_know_their_own_updates_alone() -> None:
    updates = [update(1, [7.0, 7.0]), update(0, [2.0, 3.0]), update(2, [9.0, 9.0])]
    found = attacked(*updates, knows="own")
    assert found[-1].weights["w"].tolist() == [1 + 7 + 3000, 1 + 7 + 2000]
    alone = attacked(updates[0], updates[2])  # a cohort without honest clients
    assert alone[-1].weights["w"].tolist() == [1 + 7 + 2000, 1 + 7 + 2000]


def test_broken_updates_are_neither_known_nor_attacked() -> None:
    broken = update(3, [float("nan")] * 2, is_finite=False)
    failed = update(2, [float("nan")] * 2, is_finite=False)
    found = attacked(broken, failed, update(0, [2.0, 3.0], draws=3), update(1, [7.0, 7.0]))
    assert [each.client for each in found] == [3, 2, 0, 1]
    assert found[-1].weights["w"].tolist() == [1 + 1 + 4000, 1 + 2 + 1000]  # three draws and one


def test_each_attacker_starts_from_its_own_message() -> None:
    def readdress(message: Message, client: int) -> Message:
        return Message(3, {**message.weights, "w": torch.full((2,), 10.0 * client)})

    own = Message(3, MESSAGE.weights, readdress=readdress)
    found = attacked(update(0, [2.0, 3.0]), update(1, [7.0, 7.0]), message=own)
    assert found[-1].weights["w"].tolist() == [10 + 2 + 2000, 10 + 3 + 1000]


def test_an_attack_that_overflows_is_not_finite() -> None:
    def huge(steps: Tensor, updates: int, attackers: int) -> Tensor:
        return torch.full((2,), 1e300, dtype=torch.float64)

    (_, found) = collude(
        [update(0, [2.0, 3.0]), update(1, [7.0, 7.0])], MESSAGE, {1}, {"w"}, huge, "honest"
    )
    assert not found.is_finite


def test_by_default_the_stream_passes_unchanged() -> None:
    updates = [update(1, [7.0, 7.0]), update(0, [2.0, 3.0])]
    for faults in (Faults(), byzantine("sign_flip")):
        found = faults.collude(iter(updates), MESSAGE)
        assert next(found) is updates[0]
        assert next(found) is updates[1]


def byzantine(attack: str) -> Injected:
    faults = federate(*SMALL, *BYZANTINE, f"faults.attack={attack}").engine.resources.faults
    assert isinstance(faults, Injected)
    return faults


@pytest.mark.parametrize("attack", JOINT)
def test_a_round_is_the_honest_updates_and_the_joint_step(attack: str) -> None:
    """The mean of four honest models and twice w + step."""
    uniform = ["aggregator=uniform", *SMALL]
    attacks = [*BYZANTINE, f"faults.attack={attack}", "faults.deviations=1.5"]
    federation = federate(*uniform, *attacks)
    faults = federation.engine.resources.faults
    assert isinstance(faults, Injected)
    assert faults._joint_step is not None
    honest = [client for client in range(6) if client not in faults.byzantine_clients]
    assert len(honest) == 4
    before = {n: w.double() for n, w in federation.server.weights.items()}
    plain = federate(*uniform)
    updates = list(plain.engine.train(honest, plain.server.broadcast(1)))
    after = weights_after(federation, 1)
    flat = torch.stack(
        [torch.cat([(u.weights[n] - w).flatten() for n, w in before.items()]) for u in updates]
    )
    expected = (flat.sum(dim=0) + 2 * faults._joint_step(flat, 6, 2)) / 6
    moved = torch.cat([(after[n] - w).flatten() for n, w in before.items()])
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)
    if attack == "inner_product":
        torch.testing.assert_close(moved, flat.mean(dim=0) / 3, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["algorithm=fednh"], ["aggregator=krum"]])
def test_the_engines_agree(options: list[str]) -> None:
    attack = [*SMALL, *options, *BYZANTINE, "faults.attack=min_max", "faults.nan=0.1"]
    assert_engine_agrees("vectorized", attack, rounds=2)


def test_several_processes_are_refused_in_one_line() -> None:
    line = r"faults.attack=min_max: .* engine.devices=2 .* divides it among processes; use one"
    with pytest.raises(InputError, match=line):
        federate(*SMALL, *BYZANTINE, "faults.attack=min_max", "engine.devices=2")


def test_clients_that_choose_their_start_are_refused_in_one_line() -> None:
    """The attackers would take the difference of two of IFCA's models for a client's step."""
    words = [*SMALL, *BYZANTINE, "personalization=ifca"]
    with pytest.raises(
        InputError, match=r"faults.attack=min_max: .* this personalization a client"
    ):
        federate(*words, "faults.attack=min_max")
    federate(*words, "faults.attack=sign_flip")
