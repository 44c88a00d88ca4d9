"""How long a sweep takes, from a few timed rounds of each of its configurations."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedexp.cli.ablate import Compose
from fedexp.cli.compose import checked_config
from fedexp.errors import InputError

_ROUNDS = 3
"""Timed rounds; the last one counts, as some methods do less in the first."""
_PARTS = ("select", "probe", "train", "server", "eval")
_QUIET = [
    *(f"rounds={_ROUNDS}", "tracking.wandb.mode=disabled", "tracking.tensorboard=false"),
    *("tracking.progress=false", "checkpoint.every=0"),
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
        start, round_seconds = _seconds(name, jobs[0], compose)
        total += len(jobs) * (start + round_seconds * compose(jobs[0]).rounds)
        rates.append(f"{name} {round_seconds:.2g}")
    print(
        f"fedexp: about {_duration(total)} if the jobs run one after another; seconds of round "
        f"{_ROUNDS}, timed now with the first seed: {', '.join(rates)}",
        file=sys.stderr,
    )


def _seconds(name: str, job: Sequence[str], compose: Compose) -> tuple[float, float]:
    """Seconds of a job outside its rounds, and of its round ``_ROUNDS``."""
    from fedexp.runtime.early import check
    from fedexp.runtime.execution import execute

    overrides = [*job, *_QUIET]
    cfg = compose(overrides)
    begun = time.perf_counter()
    try:
        with _silently(), TemporaryDirectory() as folder:
            checked = checked_config(cfg, cfg.hydra, overrides)
            run = execute(checked.config, Path(folder), checked.launch, check(checked.config))
            rounds = run.metrics[[f"time/{e}_s" for e in _PARTS if f"time/{e}_s" in run.metrics]]
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    by_round = rounds.sum(axis=1)
    return time.perf_counter() - begun - float(by_round.sum()), float(by_round.iloc[-1])


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
