"""``fedexp -m ablate=head,loss``: a method, and the method without each of the named parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.cli.option_folders import config_folder, option_folders
from fedexp.config.composed import without_strays
from fedexp.config.keys import is_below, override_key
from fedexp.errors import InputError
from fedexp.reporting.ablation_rows import row_name
from fedexp.reporting.jobs import Job, by_row

WORD = "ablate"
_GROUPS = (
    *("head", "loss", "regularizer", "gradient", "personalization", "sampler", "aggregator"),
    *("optimizer", "schedule", "compression", "coordination"),
)
"""The config groups of which a method chooses."""

_ABSENT = object()

Compose = Callable[[Sequence[str]], DictConfig]
"""Returns the config of a job's overrides; may raise HydraException."""


@dataclass(frozen=True)
class AblationSweep:
    """The jobs of an ablation.

    Attributes:
        plain: ablated group -> the option that stands for its absence.
        rows: name of a row -> the overrides of its jobs, one for each seed.
    """

    plain: dict[str, str]
    rows: dict[str, list[list[str]]]

    @property
    def jobs(self) -> list[list[str]]:
        """The overrides of each job; equal jobs are listed once."""
        every = [tuple(job) for jobs in self.rows.values() for job in jobs]
        return [list(job) for job in dict.fromkeys(every)]

    def size(self) -> str:
        """A line such as ``ablation: full method, without head, without loss ...; 12 jobs``."""
        return f"ablation: {', '.join(self.rows)}; {len(self.jobs)} jobs"


def ablation_sweep(jobs: Iterable[Job], groups: Sequence[str], compose: Compose) -> AblationSweep:
    """The jobs of ``ablate=GROUPS``: each job as it is, without each group's part, and without all.

    Typed keys of a part are left out where its place is taken by an option that lacks them.

    Raises:
        InputError: a group is unknown, no job has a part in it, or the jobs give several values to
            a key of a part that is taken away.
        HydraException: a job cannot be composed.
    """
    plain = {group: _plain_option(group) for group in groups}
    bases = by_row(jobs)
    _check_swept(bases, groups)
    rows: dict[str, list[list[str]]] = {}
    used: set[str] = set()
    for base, own in bases.items():
        choices = compose(base).hydra.runtime.choices
        every = [group for group in plain if choices[group] != plain[group]]
        used.update(every)
        removals = [(), *((group,) for group in every), tuple(every)]
        for removed in dict.fromkeys(removals):
            variant = _without(base, {each: plain[each] for each in removed}, compose)
            name = " ".join([row_name(removed, every), *_told_apart(base, bases)])
            seeds = [[each for each in job if each not in base] for job in own]
            rows[name] = [[*variant, *seed] for seed in seeds]
    if unused := [group for group in plain if group not in used]:
        found = ", ".join(f"{each}={plain[each]}" for each in unused)
        raise InputError(
            f"{WORD}={','.join(groups)}: the method has {found}, the plain default, so nothing "
            f"would change; leave {' and '.join(unused)} out"
        )
    return AblationSweep(plain, rows)


def _check_swept(bases: Iterable[Sequence[str]], groups: Sequence[str]) -> None:
    """Raise InputError if jobs differ in a key of an ablated group: the table needs one method."""
    values: dict[str, set[str]] = {}
    for base in bases:
        for word in base:
            if is_below(override_key(word), groups):
                values.setdefault(override_key(word), set()).add(word)
    for key, words in values.items():
        if len(words) > 1:
            raise InputError(
                f"{key}: has {len(words)} values, but {WORD}={','.join(groups)} takes its part "
                "away; use one value, or a sweep without an ablation"
            )


def check_word(arguments: Sequence[str], is_sweep: bool) -> None:
    """Raise InputError if ``ablate`` is typed without ``-m``, or for another sweeper."""
    keys = [override_key(each) for each in arguments]
    if WORD not in keys:
        return
    typed = arguments[keys.index(WORD)]
    if not is_sweep:
        raise InputError(f"{typed}: stands for several runs; add -m")
    if "hydra/sweeper" in keys:
        raise InputError(f"{typed}: is for fedexp's own sweeper; leave hydra/sweeper out")


def _without(job: Sequence[str], plain: dict[str, str], compose: Compose) -> list[str]:
    """The job with plain options in place of its parts."""
    kept = [each for each in job if not is_below(override_key(each), plain)]
    variant = [*kept, *(f"{group}={option}" for group, option in plain.items())]
    of_groups = [each for each in job if each not in kept and override_key(each) not in plain]
    if not of_groups:
        return variant
    config = _without_strays(compose(variant), variant)
    known = [
        each
        for each in of_groups
        if OmegaConf.select(config, override_key(each), default=_ABSENT) is not _ABSENT
    ]
    return [*variant, *known]


def _without_strays(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config without keys that the method's preset sets and the plain options lack."""
    values: Any = OmegaConf.to_container(config)  # with ${...} as it stands
    folders = option_folders(config.hydra.runtime.config_sources)
    return OmegaConf.create(without_strays(values, overrides, folders))


def _told_apart(base: Sequence[str], every: Iterable[Sequence[str]]) -> list[str]:
    """The overrides of a base that not all bases have."""
    everywhere = set.intersection(*map(set, every))
    return [each for each in base if each not in everywhere]


def _plain_option(group: str) -> str:
    """The option of a group in the default experiment without a preset. Raises InputError."""
    if group not in _GROUPS:
        raise InputError(f"{WORD}={group}: is none of {', '.join(_GROUPS)}")
    return _defaults()[group]


@cache
def _defaults() -> dict[str, str]:
    """Config group -> option, from the list of defaults of fedexp's config tree."""
    config = OmegaConf.load(Path(config_folder(), "config.yaml"))
    values: Any = OmegaConf.to_container(config)  # with ${...} as it stands
    return {k: v for each in values["defaults"] if isinstance(each, dict) for k, v in each.items()}
