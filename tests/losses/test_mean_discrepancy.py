"""The maximum mean discrepancy by hand and pair by pair, and the loss without a difference."""

import math

import pytest
import torch
from support.federations import assert_engine_agrees, federate
from support.small_federations import SMALL

from fedexp.errors import InputError
from fedexp.losses.mean_discrepancy import mean_discrepancy
from fedexp.testing import check_part


def test_one_pair_by_hand() -> None:
    # The distance is 5: each term of the kernel is 1 for equal rows, and exp(-25 / (2 h)) else.
    x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    found = mean_discrepancy(x, y, [10.0, 50.0]).item()
    assert found == pytest.approx(2 * (2 - math.exp(-1.25) - math.exp(-0.25)))


def test_all_pairs_and_padding() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 3, generator=draw), torch.randn(5, 3, generator=draw)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> float:
        return sum(math.exp(-float((a - b).square().sum()) / (2 * h)) for h in (1, 2))

    pairs = [(a, b) for a in range(3) for b in range(3)]
    expected = sum(
        kernel(x[a], x[b]) + kernel(y[a], y[b]) - 2 * kernel(x[a], y[b]) for a, b in pairs
    )
    real = torch.tensor([1.0, 1, 1, 0, 0])
    x[4] = torch.inf
    found = mean_discrepancy(x, y, [1.0, 2.0], real).item()
    assert found == pytest.approx(expected / 9, rel=1e-4)


def test_the_first_step_has_no_distance() -> None:
    """One step from the received model is FedAvg's; the second feels the distance."""
    for epochs in (1, 2):
        small = [*SMALL, f"local.epochs={epochs}", "local.batch_size=300"]
        plain, method = federate(*small), federate(*small, "loss=mmd")
        for federation in (plain, method):
            federation.run_round(1)
        apart = max(
            (weight - method.server.weights[name]).abs().max()
            for name, weight in plain.server.weights.items()
        )
        assert apart < 1e-6 if epochs == 1 else apart > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=fedavg", "loss=mmd"], rounds=2)


@pytest.mark.parametrize("override", ["loss.variances=[]", "loss.variances=[1,0]", "loss.lam=-1"])
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override.split("=")[0]):
        federate("loss=mmd", override)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=fedavg", "loss=mmd")
