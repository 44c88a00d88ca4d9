"""How many attackers a robust rule tolerates, before the run and in each round."""

import logging

import pytest
import torch
from support.federations import federate

from fedexp.aggregators.coordinatewise import Median, TrimmedMean
from fedexp.aggregators.krum import Krum
from fedexp.aggregators.robust import Tolerance
from fedexp.core.messages import Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

SMALL = ["measure.personal=null", "local.epochs=1", "data.subset=300"]


def setting(updates: int, step: int | None = None) -> Setting:
    counts = torch.ones(20, 2, dtype=torch.int64)
    everyone = Clients.of(counts)
    return Setting(0, 5, 2, 2, 20, updates, everyone, Model({}), updates_per_step=step)


def cohort(size: int) -> list[Update]:
    return [Update(k, 1, {"w": torch.tensor([float(k)])}) for k in range(size)]


@pytest.mark.parametrize(
    ("rule", "share", "updates", "line"),
    [
        ((4, 3), 0.1, 9, r"^x: tolerates no .* among 9 .* at least 0\.112, or at least 10 updates"),
        ((4, 3), 0.1, 5, r"^x: tolerates no attacker among 5 updates; use at least 10 updates"),
        ((2, 3), 0.2, 4, r"^x: tolerates no attacker among 4 updates; use at least 5 updates"),
        ((2, 1), 0.2, 4, r"^x: .* rounded down to 0; use a share of at least 0\.25, .* 5 updates"),
        ((2, 3), 0.4, 10, r"^x: 4 attackers among 10 .* 11 updates; use the share 0\.3 for 3"),
        ((2, 1), None, 2, r"^x: tolerates no attacker among 2 updates; use at least 3 updates"),
    ],
)
def test_a_rule_that_tolerates_nobody_is_refused_with_numbers_that_help(
    rule: tuple[int, int], share: float | None, updates: int, line: str
) -> None:
    with pytest.raises(InputError, match=line):
        Tolerance("x", *rule, share).plan(updates)


@pytest.mark.parametrize("updates", [3, 7, 9, 11, 13, 97, 999, 12345])
def test_the_share_in_the_error_gives_one_attacker(updates: int) -> None:
    with pytest.raises(InputError) as error:
        Tolerance("x", 2, 1, 1e-6).plan(updates)
    share = float(str(error.value).partition("a share of at least ")[2].partition(",")[0])
    assert rounded_down(share, updates) == 1


def test_drop_outs_do_not_lower_the_number_of_attackers_that_is_left_out() -> None:
    """Two of ten: with six updates still two at each end, with four one, with two the old model."""
    rule, current = TrimmedMean(0.2), {"w": torch.tensor([7.0])}
    rule.setup(setting(10))
    for size, tolerated, expected in [(10, 2, 4.5), (6, 2, 2.5), (4, 1, 1.5), (2, 0, 7.0)]:
        for update in cohort(size):
            rule.add(update, current)
        merged = rule.merge(current)
        assert merged["w"].item() == expected
        assert (merged is current) == (not tolerated)
        assert rule.metrics() == {"aggregator/tolerated": tolerated}


def test_too_few_updates_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rule, current = Median(), {"w": torch.tensor([7.0])}
    with caplog.at_level(logging.WARNING):
        for size in (2, 1, 3):
            for update in cohort(size):
                rule.add(update, current)
            rule.merge(current)
    assert caplog.messages == [
        "aggregator: 2 updates arrived, too few to tolerate an attacker; in such rounds the global "
        "model stays as it was, and aggregator/tolerated is 0"
    ]


def test_krum_does_not_keep_assumed_attackers() -> None:
    Krum(0.2, 8).setup(setting(10))
    with pytest.raises(InputError, match=r"^aggregator\.keep=9: .* some of the 2 .* at most 8$"):
        Krum(0.2, 9).setup(setting(10))


def test_a_buffer_counts_and_not_the_clients_in_flight() -> None:
    with pytest.raises(InputError, match=r"among 5 updates; use at least 10"):
        federate("aggregator=bulyan", "system=lognormal", "coordination=buffered", *SMALL)


def test_a_round_with_too_few_updates_is_skipped_and_idle() -> None:
    federation = federate("aggregator=krum", "clients.per_round=5", "faults=unreliable", *SMALL)
    faults = federation.engine.resources.faults
    faults.nan = faults.drop = 0.0  # type: ignore[attr-defined]
    before = federation.server.weights
    assert federation.run_round(1).metrics["aggregator/tolerated"] == 1
    after = federation.server.weights
    assert after is not before
    cohort = federation.sampler.select(2)
    faults.drops_out = lambda round, client: client == cohort[0]  # type: ignore[method-assign]
    metrics = federation.run_round(2).metrics
    assert metrics["aggregator/tolerated"] == 0
    assert metrics["server/quarantined"] == 0
    assert federation.server.weights is after
    assert federation.server.idle_rounds == 1
