"""Cores that other programs leave free, from files as Linux writes them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import pytest

from fedexp.distributed import free_cores
from fedexp.distributed.free_cores import FreeCores
from fedexp.distributed.ranks import Ranks

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Eight cores of which this process may use 0 to 3; time stands still between changes."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.stat, self.now, self.own = folder / "stat", 100.0, 1.0
        self.busy = [0.0] * 8
        self.write()
        patch.setattr(free_cores, "_STAT", self.stat)
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
        patch.setattr(joblib, "cpu_count", lambda: 4)
        patch.setattr(time, "perf_counter", lambda: self.now)
        patch.setattr(time, "process_time", lambda: self.own)

    def pass_by(self, seconds: float, busy: Sequence[float], own: float) -> None:
        """Time passes, in which the first cores are busy for a share of it, for us in ``own``."""
        self.now += seconds
        self.own += own * seconds
        for core, share in enumerate(busy):
            self.busy[core] += share * seconds
        self.write()

    def write(self) -> None:
        # User, nice, system, idle, iowait, irq, softirq, steal, guest (in user), guest_nice.
        lines = [
            f"cpu{core} {busy * TICKS / 2:.0f} 0 {busy * TICKS / 2:.0f} 99 999 0 0 0 555 5"
            for core, busy in enumerate(self.busy)
        ]
        self.stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 1 2 3"]))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_what_others_compute_is_not_free_and_what_this_process_computes_is(
    machine: Machine,
) -> None:
    count = FreeCores()
    # Others: 1.9 of the cores 0 to 3; what they do on core 4 is no matter.
    machine.pass_by(2.0, [1.0, 1.0, 0.9, 0.0, 1.0], own=1.0)
    assert count(Ranks()) == 2
    assert FreeCores()._start.all == pytest.approx(5.8)


def test_at_least_one_is_free(machine: Machine) -> None:
    count = FreeCores()
    machine.pass_by(1.0, [1.0] * 4, own=0.0)
    assert count(Ranks()) == 1


def test_a_container_has_no_more_than_its_limit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    count = FreeCores()
    machine.pass_by(1.0, [0.0], own=0.0)
    assert count(Ranks()) == 3


def test_ranks_share_the_cores_and_are_no_load_for_each_other(machine: Machine) -> None:
    class Three(Ranks):
        """Two ranks on this machine, each busy on a core, and one on another machine."""

        def all_gather(self, value: Any) -> list[Any]:
            elsewhere = free_cores._Share("elsewhere", value.cores, 5.0)
            return [value, value, elsewhere]

    count = FreeCores()
    machine.pass_by(1.0, [1.0, 1.0], own=1.0)
    assert count(Three()) == 2


def test_without_a_short_wait_the_clock_of_the_cores_would_say_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: machine.pass_by(seconds, [1.0], own=0.0))
    assert FreeCores()(Ranks()) == 3


def test_where_the_load_is_unknown_all_cores_are_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_cores, "_STAT", Path("/nonexistent"))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    count = FreeCores()
    machine.pass_by(1.0, [1.0] * 4, own=0.0)
    assert count(Ranks()) == 4
