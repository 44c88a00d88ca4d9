"""The simulated time of a finished run on other devices, without training again."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from fedexp.config.compatibility.declaration import declared
from fedexp.config.compatibility.traits import CHOOSES_BY_DEVICE, SIMULATED_TIME
from fedexp.config.schema import validate
from fedexp.errors import InputError, readable
from fedexp.measures.clock import Times
from fedexp.models.shape import training_flops
from fedexp.runtime.plan import Plan, plan
from fedexp.system.turns import Outcome, TurnRecord

_TURNS = "turns.csv"
"""The run's log of turns."""
_NUMBERS = ("client", "samples", "steps", "download_bytes", "upload_bytes")


class Replay:
    """A finished run whose turns can be timed on other devices.

    Args:
        folder: the run's folder, with its log of turns.
        config: the run's config.
        history: the metrics of each round.

    Raises:
        InputError: the log of turns is missing or damaged, such as by a power loss, or the devices
            decide how the run trains, so that it has to be run again.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], history: Sequence[Mapping[str, float]]
    ) -> None:
        self._folder, self._config, self._history = folder, config, history
        _check(plan(validate(dict(config))), folder)
        self._turns = _read_turns(folder)
        count = config["clients"]["count"]
        clients = (turn.client for turns in self._turns.values() for turn in turns)
        if wrong := next((client for client in clients if not 0 <= client < count), None):
            raise InputError(f"{folder / _TURNS}: has client {wrong}; the run has 0 to {count - 1}")
        for round, metrics in enumerate(history, start=1):
            self._check_bytes(round, metrics)

    def _check_bytes(self, round: int, metrics: Mapping[str, float]) -> None:
        """Raise InputError if the round's turns are not all there: their bytes are in the metrics.

        The log is not on disk as surely as the metrics, which every checkpoint holds.
        """
        turns = self._turns.get(round, ())
        for way in ("download_bytes", "upload_bytes"):
            logged = sum(getattr(turn, way) for turn in turns)
            if not turns or metrics.get(f"cost/{way}", logged) != logged:
                raise InputError(
                    f"{self._folder / _TURNS}: lacks turns of round {round}; their {way} are "
                    f"{logged}, those of the round {metrics.get(f'cost/{way}', 'unknown')}"
                )

    def on(self, system: Mapping[str, Any], targets: Sequence[float]) -> list[dict[str, float]]:
        """The run's metrics of each round, with ``clock/*`` of the devices of ``system``.

        The new ``clock/*`` equal the metrics of a run that trains with these devices, to the digit.

        Args:
            system: the new ``system`` of the config.
            targets: accuracies of the global model, for ``clock/time_to/<target>``.

        Raises:
            InputError: ``system`` has no devices, or the devices decide how the run trains.
        """
        planned = plan(validate({**self._config, "system": dict(system)}))
        _check(planned, self._folder)
        times, clock = Times(targets), planned.system
        about, clients = planned.description, planned.config.clients.count
        sizes = about.input_shape, about.num_classes, clients
        flops = partial(training_flops, planned.backbone, *sizes)
        clock.setup(clients, planned.config.seed, flops)
        found = []
        for round, metrics in enumerate(self._history, start=1):
            time = clock.advance(self._turns.get(round, ()))
            if time is None:
                raise InputError("system=none: has no devices; choose some, such as system=phones")
            others = {name: v for name, v in metrics.items() if not name.startswith("clock/")}
            found.append(others | times.after(time, metrics.get("global/accuracy")))
        return found


def _check(planned: Plan, folder: Path) -> None:
    """Raise InputError if the devices decide how this run trains."""
    parts = planned.sockets.by_name()
    components = {"system": planned.system, "coordination": planned.coordination, **parts}
    for name, component in components.items():
        declaration = declared(name, component)
        if CHOOSES_BY_DEVICE in declaration.traits or SIMULATED_TIME in declaration.needs:
            raise InputError(
                f"{folder}: its {name} lets the devices decide how it trains; run it again with "
                "the new system instead of replaying it"
            )


def _read_turns(folder: Path) -> dict[int, Sequence[TurnRecord]]:
    """Number of a round -> the turns of this round, from ``turns.csv`` in the run's folder.

    Raises InputError if the file is missing or damaged.
    """
    path = folder / _TURNS
    if not path.is_file():
        raise InputError(
            f"{folder}: has no {_TURNS}; runs of older versions, and runs without measure.turns, "
            "cannot be replayed"
        )
    found: dict[int, list[TurnRecord]] = defaultdict(list)
    with (
        readable(path, ValueError, TypeError, csv.Error),
        path.open(newline="", encoding="utf-8") as file,
    ):
        rows = csv.DictReader(file)
        if missing := {"round", "outcome", *_NUMBERS}.difference(rows.fieldnames or ()):
            raise ValueError(f"it has no column {min(missing)}")
        for row in rows:
            numbers = {name: int(row[name]) for name in _NUMBERS}
            if row["outcome"] not in get_args(Outcome):
                raise ValueError(f"{row['outcome']!r} is no outcome")
            outcome = cast(Outcome, row["outcome"])
            found[int(row["round"])].append(TurnRecord(**numbers, outcome=outcome))
    return dict(found)
