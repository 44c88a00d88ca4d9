"""``check_measure``: whether a measure keeps the contract."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedexp.config.schema import Config
from fedexp.core.messages import Message, Tensors
from fedexp.core.reducible import Reducible
from fedexp.distributed.ranks import Ranks
from fedexp.distributed.wire import decode, encode
from fedexp.drawing.data_figure import DataFigure
from fedexp.measures.measure import Measure
from fedexp.runtime.plan import plan
from fedexp.testing.comparison import ContractError, compare
from fedexp.testing.federations import configure, federation_of, resume, scramble, sent, sent_after
from fedexp.tracking.tracker import Record, Tracker

_CPU = torch.device("cpu")
_MEASURED_ROUNDS = "rounds=3"
"""An override for three rounds, so that there is a first, a middle and a last round."""


def check_measure(*overrides: str, config_dir: str | Path | None = None) -> None:
    """Check the measures that these overrides add, such as ``"+measure=drift"``.

    The rules, in this order:

    1. Two runs with the same seed have the same metrics, tables and figures; only metrics
       ``time/*`` may differ. For this, give every random draw a key (``core.randomness``).
    2. Training gives bit-identical weights with and without the measure.
    3. A run that is resumed after its first round has the same records as an uninterrupted run.
       For this, return the state that later rounds need from ``state_dict``.
    4. If each of two processes observes half of the updates, a measure with a ``contribution``
       returns the same records as in one process, up to rounding.
    5. Each declared headline is measured in at least one round, and is always a finite number.

    Args:
        overrides: overrides as on the command line, in addition to ``TINY``. If they add no
            measure, the measures of the tiny experiment except ``training`` are checked.
        config_dir: a folder with your own config groups, as for ``--config-dir``.

    Raises:
        ContractError: names the first broken rule and the value that breaks it.
        InputError: the config is invalid, or a hook returns a wrong result.
    """
    config = configure([_MEASURED_ROUNDS, *overrides], config_dir)
    usual = configure([], None).measure.keys()
    kept = usual if config.measure.keys() - usual else {"training"}
    measures = {n: each for n, each in plan(config).measures.items() if n not in kept}
    records, weights = _recorded(config)
    found = _shown(records)
    compare(
        found,
        lambda: _shown(_recorded(config)[0]),
        "two runs with the same seed differ: a random draw has no key (core.randomness)",
    )
    nodes = {name: node for name, node in config.measure.items() if name in kept}
    without = config.model_copy(update={"measure": nodes, "objective": "train/loss"})
    compare(
        _recorded(without)[1],
        lambda: weights,
        "training differs with the measure, which must change nothing",
    )
    compare(
        found,
        lambda: _shown(_recorded_with_a_break(config)),
        "a resumed run differs: return the state that later rounds need from state_dict",
    )
    reduced = [n for n, m in measures.items() if type(m).contribution is not Measure.contribution]
    if reduced:
        compare(
            found,
            lambda: _shown(_recorded_in_halves(config, reduced)),
            "two processes differ: return the sums over updates from contribution",
            tolerance=1e-9,
        )
    for measure in measures.values():
        _check_headlines(measure.headlines, records)


class _Recorder(Tracker):
    """A tracker that keeps all records in a list."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        self.records.append(record)


def _recorded(config: Config) -> tuple[list[Record], Tensors]:
    """The records of a whole run, and the tensors that the server would send next."""
    scramble()
    recorder = _Recorder()
    with federation_of(config) as federation:
        federation.tracker = recorder
        federation.run(config.rounds)
        return recorder.records, sent_after(federation, config.rounds)


def _recorded_with_a_break(config: Config) -> list[Record]:
    """The records of a run that stops after its first round, and of the run that resumes it."""
    scramble()
    recorder = _Recorder()
    with federation_of(config) as first, federation_of(config) as second:
        first.tracker = second.tracker = recorder
        first.run(config.rounds, stops_after=lambda round: round == 1)
        resume(second, first)
        second.run(config.rounds, done=1)
    return recorder.records


def _shown(records: Sequence[Record]) -> dict[str, Any]:
    """Name -> value of everything in the records except measured times."""
    shown: dict[str, Any] = {}
    for record in records:
        found: dict[str, Any] = {
            n: v for n, v in record.metrics.items() if not n.startswith("time/")
        }
        found |= {f"the accuracy of {name}": value for name, value in record.per_class.items()}
        for name, table in record.tables.items():
            found |= {f"column {column} of {name}": list(v) for column, v in table.items()}
        for name, figure in record.figures.items():
            data = figure.data if isinstance(figure, DataFigure) else {}
            found |= {f"figure {name}": None}
            found |= {f"{key} of figure {name}": np.asarray(v).tolist() for key, v in data.items()}
        shown |= {f"round {record.round}: {name}": value for name, value in found.items()}
    return shown


def _check_headlines(headlines: Mapping[str, str], records: Sequence[Record]) -> None:
    """Raise ContractError if a headline is never measured, or is NaN or infinite in a round."""
    for name in headlines:
        values = [record.metrics[name] for record in records if name in record.metrics]
        if not values:
            raise ContractError(f"the headline {name} is measured in no round")
        if bad := [value for value in values if not math.isfinite(value)]:
            raise ContractError(f"the headline {name} is {bad[0]}; leave it out where it has none")


class _TwoProcesses(Ranks):
    """Imitates two processes: two groups of measures observe the updates and are then combined.

    The second group are the ``twins``, which observe every second update. The run's ``measures``
    observe the remaining updates.
    """

    def __init__(self, measures: Sequence[Measure], twins: Sequence[Measure]) -> None:
        self._pairs = list(zip(measures, twins, strict=True))
        for pair in self._pairs:
            _share(*pair)

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Combine the contributions of each measure and its twin, and give the result to both.

        ``parties`` is ignored.
        """
        for pair in self._pairs:
            shares = [each.contribution() for each in pair]
            sums: Tensors = {}
            for name, value in chain(*(share.sums.items() for share in shares)):
                sums[name] = sums[name] + value.double() if name in sums else value.double()
            for each in pair:
                each.set_reduced(sent(sums), decode(encode([s.items for s in shares]), _CPU))


def _share(measure: Measure, twin: Measure) -> None:
    """Let the twin observe every second update instead of ``measure``; both begin every round."""
    begin_round, turns = measure.begin_round, cycle([measure.observe, twin.observe])

    def begin_both(message: Message) -> None:
        begin_round(message)
        twin.begin_round(message)

    vars(measure).update(begin_round=begin_both, observe=lambda update: next(turns)(update))


def _recorded_in_halves(config: Config, names: Iterable[str]) -> list[Record]:
    """The records of a run in which each named measure and its twin share the updates equally."""
    scramble()
    recorder = _Recorder()
    with federation_of(config) as federation, federation_of(config) as other:
        pairs = [(federation.measures[name], other.measures[name]) for name in names]
        federation.ranks = _TwoProcesses(*zip(*pairs, strict=True))
        federation.tracker = recorder
        federation.run(config.rounds)
    return recorder.records
