"""How long a sweep takes, from a few timed rounds of each of its configurations."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig

from fedexp.cli.ablate import Compose
from fedexp.cli.compose import checked_config
from fedexp.errors import InputError

_ROUNDS = 4
"""Timed rounds. Some methods do less in the first two, and some do more in the last."""
_TRAINING = ("select", "probe", "train", "server")
_QUIET = [
    *(f"rounds={_ROUNDS}", "tracking.wandb.mode=disabled", "tracking.tensorboard=false"),
    *("tracking.progress=false", "checkpoint.every=0"),
    "++measure.cost._target_=fedexp.measures.cost.Cost",  # its columns are the seconds of training
]


def announce_seconds(rows: Mapping[str, Sequence[Sequence[str]]], compose: Compose) -> None:
    """Print the time that all jobs take one after another, and each row's seconds for a round.

    Args:
        rows: name of a configuration -> the overrides of its jobs, which differ in the seed.
        compose: returns the config of a job's overrides.

    Raises:
        InputError: a configuration cannot run; the error begins with its name.
    """
    total, rates = 0.0, []
    for name, jobs in rows.items():
        try:
            timed = _time(jobs[0], compose)
        except InputError as error:
            _check_whole(name, jobs[0], compose)
            print(f"fedexp: not timed; {_ROUNDS} rounds are too few ({error})", file=sys.stderr)
            return
        total += len(jobs) * timed.of_job(compose(jobs[0]))
        rates.append(f"{name} {timed.training + timed.last_scoring:.2g}")
    print(
        f"fedexp: about {_duration(total)} if the jobs run one after another; seconds of a round "
        f"with all measures, timed now with the first seed: {', '.join(rates)}",
        file=sys.stderr,
    )


@dataclass(frozen=True)
class _Timed:
    """Seconds of the parts of a job, from a run of ``_ROUNDS`` rounds.

    Args:
        start: all that is outside rounds, and the training that only the last round has.
        training: a round before the last, without its measures.
        scoring: the measures after a round before the last.
        last_scoring: the measures after the last round, in which all are due.
    """

    start: float
    training: float
    scoring: float
    last_scoring: float

    def of_job(self, cfg: DictConfig) -> float:
        """Seconds of the whole job."""
        rare = max(0.0, self.last_scoring - self.scoring) * _rounds_of_rare_measures(cfg)
        every_round = int(cfg.rounds) * (self.training + self.scoring)
        return self.start + every_round + rare


def _rounds_of_rare_measures(cfg: DictConfig) -> int:
    """Rounds after which a measure is due that is not due in the timed round before the last."""
    counts = [1]  # the last round, in which all are due
    for measure in cfg.measure.values():
        if every := measure and measure.get("every"):
            due = [e for e in range(measure.get("first", 1), cfg.rounds) if e % every == 0]
            counts += [] if _ROUNDS - 1 in due else [len(due) + 1]
    return max(counts)


def _check_whole(name: str, job: Sequence[str], compose: Compose) -> None:
    """Raise InputError, beginning with ``name``, if the job cannot run with all its rounds."""
    from fedexp.runtime.early import check

    try:
        with _silently():
            cfg = compose(job)
            check(checked_config(cfg, cfg.hydra, job).config)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _time(job: Sequence[str], compose: Compose) -> _Timed:
    """Run a job's first rounds. Raises InputError if it cannot run, also if they are too few."""
    from fedexp.runtime.early import check
    from fedexp.runtime.execution import execute

    overrides = [*job, *_QUIET]
    cfg = compose(overrides)
    begun = time.perf_counter()
    with _silently(), TemporaryDirectory() as folder:
        checked = checked_config(cfg, cfg.hydra, overrides)
        run = execute(checked.config, Path(folder), checked.launch, check(checked.config))
    seconds = time.perf_counter() - begun
    columns = run.metrics.columns.intersection([f"time/{each}_s" for each in _TRAINING])
    training, scoring = run.metrics[columns].sum(axis=1), run.metrics["time/eval_s"].fillna(0.0)
    once = max(0.0, training.iloc[-1] - training.iloc[-2])
    start = seconds - float(training.sum() + scoring.sum()) + once
    return _Timed(start, float(training.iloc[-2]), float(scoring.iloc[-2]), float(scoring.iloc[-1]))


@contextmanager
def _silently() -> Iterator[None]:
    """Without the log, which the jobs themselves write."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _duration(seconds: float) -> str:
    """Seconds as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
