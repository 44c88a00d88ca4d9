"""Only available clients are chosen, by every sampler; the clock waits for the first arrival."""

from pathlib import Path

import numpy as np
import pytest
from support.federations import compose, federate

from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.system.availability import Availability, Bernoulli, Diurnal
from fedexp.system.trace import Trace

SMALL = (
    *("clients.count=12", "clients.per_round=3", "data.subset=240", "local.epochs=1", "rounds=8"),
    *("model.hidden=[8]", "model.feature_dim=8", "measure.personal.every=1000"),
    *("measure.prototypes.every=1000", "system=uniform", "system.latency=1"),
)
SAMPLERS = sorted(path.stem for path in (Path(config_folder()) / "sampler").glob("*.yaml"))
EVERYONE = np.arange(4)


def bernoulli(p: float, clients: int = 4) -> Bernoulli:
    found = Bernoulli(p, 10.0)
    found.setup(clients, 0)
    return found


def diurnal(phases: list[float]) -> Diurnal:
    found = Diurnal(100.0, 0.25)
    found.setup(len(phases), 0)
    found.phases = np.array(phases)
    return found


def trace(folder: Path, rows: str, clients: int = 4) -> Trace:
    path = folder / "trace.csv"
    path.write_text(f"client,from,to\n{rows}")
    found = Trace(str(path))
    found.setup(clients, 0)
    return found


def test_bernoulli_draws_each_client_in_each_interval() -> None:
    drawn = np.stack([bernoulli(0.3, 500).present(10.0 * n) for n in range(40)])
    assert drawn.mean() == pytest.approx(0.3, abs=0.01)
    assert drawn.mean(axis=0).std() == pytest.approx((0.3 * 0.7 / 40) ** 0.5, rel=0.15)
    assert (bernoulli(0.3, 500).present(19.9) == drawn[1]).all()
    assert bernoulli(0.3).next_arrival(12.0, EVERYONE) == pytest.approx(20)


def test_diurnal_clients_are_there_in_the_first_part_of_their_day() -> None:
    found = diurnal([0.0, 0.5, 0.9, 0.74])
    assert found.present(0.0).tolist() == [True, False, False, False]
    assert found.present(20.0).tolist() == [True, False, True, False]
    assert found.present(55.0).tolist() == [False, True, False, False]
    assert found.present(155.0).tolist() == found.present(55.0).tolist()
    assert found.next_arrival(40.0, np.array([0, 1, 2])) == pytest.approx(50)
    assert found.next_arrival(40.0, np.array([0, 2])) == pytest.approx(100)
    assert found.present(found.next_arrival(40.0, np.array([1])))[1]


def test_a_trace_lists_intervals_and_begins_again(tmp_path: Path) -> None:
    found = trace(tmp_path, "0,10,20\n1,15,30\n0,25,30\n7,0,100\n")
    assert found.present(15.0).tolist() == [True, True, False, False]
    assert found.present(20.0).tolist() == [False, True, False, False]
    assert found.present(115.0).tolist() == found.present(15.0).tolist()
    assert found.next_arrival(0.0, EVERYONE) == pytest.approx(10)
    assert found.next_arrival(22.0, np.array([0])) == pytest.approx(25)
    assert found.next_arrival(40.0, np.array([1])) == pytest.approx(115)
    assert found.next_arrival(0.0, np.array([2, 3])) == np.inf


def test_a_trace_without_clients_with_data_ends_the_run_in_one_line(tmp_path: Path) -> None:
    federation = federate(*SMALL)
    federation.system._availability = trace(tmp_path, "3,0,9\n")
    with pytest.raises(InputError, match="no client with data is ever available"):
        federation.system.available(np.array([1, 2]))


def test_a_trace_may_have_clients_of_any_number(tmp_path: Path) -> None:
    found = trace(tmp_path, "1e30,0,9\n7,0,9\n2,0,9\n")
    assert found.present(1).tolist() == [False, False, True, False]
    assert found.next_arrival(1, np.array([2])) == pytest.approx(9)


def check_nobody_away_is_chosen(*overrides: str) -> None:
    federation = federate(*SMALL, *overrides)
    system, sampler = federation.system, federation.sampler
    sizes = []
    for round in range(1, 9):
        federation.run_round(round)
        exchange = federation.measures.exchange
        assert exchange.time is not None
        start = exchange.time.end - exchange.time.seconds
        present = np.flatnonzero(system._availability.present(start + 1e-9))
        chosen = {turn.client for turn in exchange.turns}
        assert chosen <= set(present.tolist())
        assert 1 <= len(set(exchange.cohort)) <= 3
        assert len(exchange.cohort) == len(sampler.select(round))  # of all that may be chosen
        sizes.append(len(present))
    assert min(sizes) < 12


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_sampler_chooses_a_client_that_is_away(sampler: str) -> None:
    check_nobody_away_is_chosen(
        f"sampler={sampler}", "availability=bernoulli", "availability.p=0.3"
    )


def test_round_robin_passes_over_clients_that_are_away() -> None:
    sampler = federate(*SMALL, "sampler=round_robin", "partition=iid").sampler
    assert sampler.select(2) == [3, 4, 5]
    sampler.limit_to(np.isin(np.arange(12), [0, 3, 5, 11]))
    assert sampler.select(2) == [3, 5, 11]
    assert sampler.select(4) == [0, 3, 11]
    sampler.limit_to(np.isin(np.arange(12), [7, 2]))
    assert sampler.select(1) == [2, 7]
    sampler.limit_to(None)
    assert sampler.select(4) == [9, 10, 11]


def test_the_warm_up_passes_over_clients_that_are_away() -> None:
    sampler = federate(*SMALL, "sampler=hics", "partition=iid").sampler
    order = sampler.order.tolist()  # type: ignore[attr-defined]
    sampler.limit_to(~np.isin(np.arange(12), order[3:5]))
    assert sampler.select(2) == sorted(order[5:8])


def test_the_clock_waits_for_the_first_arrival(tmp_path: Path) -> None:
    trace(tmp_path, "0,1000,1001\n1,1000,1001\n3,5000,9000\n")
    file = f"availability.file={tmp_path / 'trace.csv'}"
    federation = federate(*SMALL, "partition=iid", "availability=trace", file)
    ends = []
    for round in (1, 2):
        record = federation.run_round(round)
        ends.append((record.metrics["clock/seconds"], record.metrics["clock/round_s"]))
    assert ends[0][0] == pytest.approx(1000 + ends[0][1], abs=1e-5)
    assert ends[1][0] == pytest.approx(max(5000, ends[0][0]) + ends[1][1], abs=1e-5)
    assert record.logs["turns"]["client"] == [3]


def test_clients_without_data_do_not_count_as_available() -> None:
    federation = federate(
        *SMALL, "partition=iid", "availability=diurnal", "availability.period=100"
    )
    system = federation.system
    system._availability = found = diurnal([0.0, 0.5, 0.6, 0.7])
    assert system.available(np.array([1, 2])).tolist() == [False, True]  # type: ignore[union-attr]
    assert system.now == pytest.approx(40)
    assert found.present(system.now)[2]


class Never(Availability):
    def present(self, now: float) -> np.ndarray:
        return np.zeros(12, dtype=bool)

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        return now + 1


def test_if_nobody_ever_arrives_the_run_ends_in_one_line() -> None:
    federation = federate(*SMALL)
    federation.system._availability = Never()
    with pytest.raises(InputError, match="no client with data became available up to 10000 sec"):
        federation.run_round(1)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ("0,5,5\n", "in row 1 to should be larger than from"),
        ("0.5,1,5\n", "client is 0.5 in row 1; should be a whole number"),
        ("0,1\n", "row 1 has 2 values"),
    ],
)
def test_a_wrong_trace_is_refused_in_one_line(rows: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"client,from,to\n{rows}")
    with pytest.raises(InputError, match=error):
        plan(compose("system=uniform", "availability=trace", f"availability.file={path}"))
