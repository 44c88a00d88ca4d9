"""A paper's table as a sweep: its jobs, changes on the command line, and the list of all tables.

A table is a preset ``experiment/<paper>/<name>.yaml``. The jobs are all combinations of the values
of some keys, the axes, in ``hydra.sweeper.params``. The values of the axis ``experiment`` are the
table's cells. A table whose jobs are not all combinations has ``hydra.sweeper.parts``: the jobs of
a part are all combinations of the part's axes and of ``params``.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedexp.config.keys import RECORDS, is_below, is_cost, override_key
from fedexp.errors import InputError
from fedexp.reporting.jobs import values_of, without_seeds

CELLS = "experiment"
Axes = Mapping[str, Sequence[str]]
"""Key -> its values, as typed on the command line."""

_WITHOUT_EFFECT = (*RECORDS, "seed", "data.root", "hydra")
"""Keys that cannot change a table's results, besides costs."""

_ABSENT = object()

_NOUNS = {CELLS: "cell", "algorithm": "method", "sampler": "sampler", "seed": "seed"}


@dataclass(frozen=True)
class TableSweep:
    """The sweep of a table.

    Attributes:
        name: the preset, such as ``fednh/table1``.
        parts: for each section of the table, key -> the values to sweep.
    """

    name: str
    parts: Sequence[Axes]

    @classmethod
    def read(
        cls, name: str, params: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]
    ) -> TableSweep:
        """The table with these ``hydra.sweeper.params`` and ``hydra.sweeper.parts``."""
        common = {key: values_of(value) for key, value in params.items()}
        own = [{key: values_of(value) for key, value in part.items()} for part in parts]
        axes = ({**common, **part}.items() for part in own or [{}])
        # The seeds vary fastest, so that the runs of one method follow each other.
        return cls(name, [dict(sorted(each, key=lambda axis: axis[0] == "seed")) for each in axes])

    @property
    def first_cell(self) -> str:
        """The experiment of the first cell; without Hydra's ``-m`` only this cell runs."""
        return self.parts[0][CELLS][0]

    def only(self, patterns: Sequence[str]) -> TableSweep:
        """Keep only cells (experiments) that fit a pattern. InputError if a pattern fits none."""
        cells = list(dict.fromkeys(itertools.chain(*(part[CELLS] for part in self.parts))))
        for pattern in patterns:
            if not any(_fits(cell, pattern) for cell in cells):
                raise InputError(
                    f"hydra.sweeper.cells: {pattern} is no cell of {self.name}, which has "
                    f"{', '.join(cells)}"
                )
        kept = [cell for cell in cells if any(_fits(cell, pattern) for pattern in patterns)]
        parts = [{**part, CELLS: [c for c in part[CELLS] if c in kept]} for part in self.parts]
        return TableSweep(self.name, [part for part in parts if part[CELLS]])

    def with_typed(self, typed: Axes) -> TableSweep:
        """Replace the preset's values by the values on the command line.

        A typed value that only some parts have selects these parts. A typed value that no part has
        replaces the values of all parts. Raises InputError if no part remains.
        """
        parts = [part for each in self.parts if (part := self._with_typed(each, typed)) is not None]
        if not parts:
            given = " ".join(f"{key}={','.join(values)}" for key, values in typed.items())
            raise InputError(f"{given}: {self.name} has no job with all of these")
        return TableSweep(self.name, parts)

    def _with_typed(self, part: Axes, typed: Axes) -> Axes | None:
        result = dict(part)
        for key, values in typed.items():
            known = set(itertools.chain(*(each.get(key, ()) for each in self.parts)))
            result[key] = [v for v in values if v in part.get(key, ()) or v not in known]
            if not result[key]:
                return None
        return result

    def changes(self, typed: Axes) -> list[str]:
        """The typed overrides that can change results and are no values of the table."""
        return [
            f"{key}={value}"
            for key, values in typed.items()
            if not is_below(override_key(key), _WITHOUT_EFFECT) and not is_cost(override_key(key))
            for value in values
            if not any(value in part.get(key, ()) for part in self.parts)
        ]

    def jobs(self) -> list[list[str]]:
        """The overrides of each job; equal jobs are listed once."""
        jobs = [
            tuple(f"{key}={value}" for key, value in zip(part, job, strict=True))
            for part in self.parts
            for job in itertools.product(*part.values())
        ]
        return [list(job) for job in dict.fromkeys(jobs)]

    def size(self) -> str:
        """The number of jobs, for example ``6 cells x 10 methods x 3 seeds = 180 jobs``."""
        jobs = len(self.jobs())
        total = f"{jobs} job{'s' if jobs > 1 else ''}"
        keys = dict.fromkeys(itertools.chain(*self.parts))
        found = {key: {v for part in self.parts for v in part.get(key, ())} for key in keys}
        axes = [_count(key, len(values)) for key, values in found.items() if key in _NOUNS]
        others = [
            _count(key, len(v)) for key, v in found.items() if key not in _NOUNS and len(v) > 1
        ]
        if len(self.parts) == 1:
            return f"{' x '.join(axes[:-1] + others + axes[-1:])} = {total}"
        return f"{total}: {', '.join(axes[:-1] + others + axes[-1:])}"


def table_jobs(
    whole: TableSweep,
    cells: Sequence[str] | None,
    typed: Axes,
    compose: Callable[[Sequence[str]], DictConfig],
) -> list[list[str]]:
    """The jobs of a table; prints their number and the differences from the preset.

    Args:
        whole: the sweep in the preset.
        cells: names or patterns of the cells to run; None for all cells.
        typed: key -> values on the command line.
        compose: returns the config of a job's overrides; may raise HydraException.

    Raises:
        InputError: a pattern fits no cell, or no job has all the typed values.
    """
    table = (whole.only(cells) if cells else whole).with_typed(typed)
    jobs = table.jobs()
    changes = " ".join(_with_effect(whole.changes(typed), without_seeds(jobs), compose))
    differs = f"; differs from the preset: {changes}" if changes else ""
    print(f"fedexp: {whole.name}: {table.size()}{differs}", file=sys.stderr)
    return jobs


def _with_effect(
    overrides: Sequence[str],
    jobs: Sequence[Sequence[str]],
    compose: Callable[[Sequence[str]], DictConfig],
) -> list[str]:
    """The overrides on the command line that change a value of at least one job."""
    same = set(overrides)
    for job in jobs:
        if not same:
            break
        try:
            config = compose([each for each in job if each not in overrides])
        except HydraException:  # another override needs an override that is left out
            return list(overrides)
        same -= {each for each in same & {*job} if not _has(config, each)}
    return [each for each in overrides if each not in same]


def _has(config: DictConfig, override: str) -> bool:
    """Whether the config already has the option or value of the override."""
    parsed = OverridesParser.create().parse_override(override)
    key, choices = parsed.key_or_group, config.hydra.runtime.choices
    found = choices[key] if key in choices else OmegaConf.select(config, key, default=_ABSENT)
    found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
    return not parsed.is_delete() and found == parsed.value()


def announce_single_cell(config: DictConfig) -> None:
    """Print what a run without ``-m`` leaves out: the other cells of a table, or the search.

    Args:
        config: the whole config, with Hydra's node.
    """
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
    params, parts = sweeper.get("params") or {}, sweeper.get("parts") or []
    if CELLS in params or any(CELLS in part for part in parts):
        name = config.hydra.runtime.choices[CELLS]
        cell = TableSweep.read(name, params, parts).first_cell
        print(
            f"fedexp: {name} is a table; this runs its first cell, {cell}; the whole table: "
            f"fedexp -m experiment={name}",
            file=sys.stderr,
        )
    elif params:
        print(
            f"fedexp: without -m nothing is swept or searched: {', '.join(params)}",
            file=sys.stderr,
        )


def table_presets(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """(name, title) of each table below ``<folder>/experiment``.

    The title is the first comment of the preset.
    """
    for folder in folders:
        for path in sorted((folder / CELLS).glob("**/*.yaml"), key=_natural):
            lines = path.read_text(encoding="utf-8").splitlines()
            if any(line.startswith("  sweeper:") for line in lines):
                comments = (line[1:].strip() for line in lines if line.startswith("# "))
                title = next((each for each in comments if not each.startswith("@")), "")
                yield path.relative_to(folder / CELLS).with_suffix("").as_posix(), title


def _fits(cell: str, pattern: str) -> bool:
    return fnmatchcase(cell, pattern) or fnmatchcase(cell.rpartition("/")[2], pattern)


def _count(key: str, count: int) -> str:
    if key in _NOUNS:
        return f"{count} {_NOUNS[key]}{'s' if count > 1 else ''}"
    return f"{count} values of {key}"


def _natural(path: Path) -> tuple[str, str, int, str]:
    """A sort key: by folder; figures before tables; ``table2`` before ``table10``."""
    number = re.search(r"\d+", path.stem)
    kind = path.stem[: number.start()] if number else path.stem
    return path.parent.as_posix(), kind, int(number[0]) if number else 0, path.stem
