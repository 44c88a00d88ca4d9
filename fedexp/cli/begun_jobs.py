"""The jobs of a resumed sweep that have begun keep their config."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from fedexp.cli.compose import checked_config
from fedexp.config.keys import may_change, override_key
from fedexp.reporting.runs import UNREADABLE, read_yaml
from fedexp.state import run_folder


def check_begun(
    folder: Path, jobs: Sequence[Sequence[str]], compose: Callable[[Sequence[str]], DictConfig]
) -> None:
    """Raise InputError if a job that has begun would go on with another config.

    The sweep would refuse this job alone and run the others, so that its table had rows of two
    configs and no command could finish it.

    Args:
        folder: the sweep's folder.
        jobs: the overrides of each job, in the order of the jobs' numbers.
        compose: makes the config of a job, with Hydra's node. Only jobs whose overrides are others
            than those in their folder are composed.
    """
    for number, job in enumerate(jobs):
        run = folder / str(number)
        if not (run / run_folder.FILE_NAME).is_file() or _fixed(_saved(run)) == _fixed(job):
            continue
        cfg = compose(job)
        config = checked_config(cfg, cfg.hydra, job).config
        run_folder.check(run, config.model_copy(update={"resume": run_folder.AUTO}))


def _saved(run: Path) -> list[str]:
    """The overrides of the run's latest start; empty if they cannot be read."""
    try:
        return [str(each) for each in read_yaml(run / ".hydra" / "overrides.yaml") or []]
    except UNREADABLE:
        return []


def _fixed(overrides: Iterable[str]) -> set[str]:
    """The overrides of keys that a resumed run may not change."""
    return {each for each in overrides if not may_change(override_key(each))}
