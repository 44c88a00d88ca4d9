"""The accountant against published numbers and against formulas written out by hand."""

import builtins
import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from support.federations import federate

from fedexp.aggregators.accountant import Accountant
from fedexp.errors import InputError


def epsilon(z: float, q: float, releases: int, delta: float) -> float:
    accountant = Accountant()
    accountant.set(z, q)
    return accountant.epsilon(releases, delta)


class TestAccountant:
    def test_the_value_in_opacus_own_tests(self) -> None:
        assert epsilon(1.5, 0.04, 2250, 1e-5) == pytest.approx(7.32911117143, abs=1e-9)

    def test_no_worse_than_the_moments_accountant(self) -> None:
        """Abadi et al., CCS 2016, Section 3.2: 1.26 at q = 0.01, sigma = 4, 10000 steps, 1e-5.

        The conversion to (epsilon, delta) has become tighter since, by no more than log(1 / delta)
        over the order.
        """
        assert 0.9 < epsilon(4, 0.01, 10000, 1e-5) <= 1.26

    def test_full_participation_by_hand(self) -> None:
        """q = 1 is the Gaussian mechanism, whose Renyi divergence of order a is a / (2 z^2)."""
        z, releases, delta = 6.0, 10, 1e-6
        orders = np.linspace(1.01, 60, 200000)
        converted = (
            releases * orders / (2 * z**2)
            + np.log1p(-1 / orders)
            - (math.log(delta) + np.log(orders)) / (orders - 1)
        )
        assert epsilon(z, 1.0, releases, delta) == pytest.approx(converted.min(), rel=1e-3)

    def test_a_sampled_round_by_integration(self) -> None:
        """The divergence of (1 - q) N(0, z^2) + q N(1, z^2) from N(0, z^2), numerically."""
        z, q, delta = 2.0, 0.5, 1e-5

        def divergence(order: float) -> float:
            def integrand(x: float) -> float:
                ratio = 1 - q + q * math.exp((2 * x - 1) / (2 * z**2))
                return math.exp(-(x**2) / (2 * z**2)) * ratio**order / math.sqrt(2 * math.pi * z**2)

            return math.log(quad(integrand, -60, 60, limit=500)[0]) / (order - 1)

        orders = np.arange(2, 40)
        converted = [
            3 * divergence(a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
            for a in map(float, orders)
        ]
        assert epsilon(z, q, 3, delta) == pytest.approx(min(converted), rel=0.01)

    def test_other_samplers_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"use sampler=random"):
            federate("aggregator=private", "sampler=round_robin")
        with pytest.raises(InputError, match=r"use sampler=random"):
            federate("aggregator=private", "sampler=weighted")

    def test_a_run_logs_what_it_spends(self) -> None:
        federation = federate("aggregator=private", "local.epochs=1", "data.subset=300")
        metrics = [federation.run_round(round).metrics for round in (1, 2)]
        assert metrics[0]["privacy/epsilon"] < metrics[1]["privacy/epsilon"]
        expected = epsilon(1.0, 0.5, 2, 1e-5)  # 10 of 20 clients
        assert metrics[1]["privacy/epsilon"] == pytest.approx(expected)
        assert metrics[1]["privacy/delta"] == 1e-5


def test_without_opacus_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name.startswith("opacus"):
            raise ImportError(name)
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"needs opacus.*pip install 'fedexp\[privacy\]'"):
        federate("aggregator=private")
