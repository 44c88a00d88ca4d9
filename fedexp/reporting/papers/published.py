"""The numbers that a paper published, as a preset lists them under ``paper:``."""

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, NonNegativeFloat, model_validator

from fedexp.config.build import STRICT, Node, check
from fedexp.errors import InputError
from fedexp.reporting.runs import Run


class Published(BaseModel):
    """A row of numbers that a paper reports for an experiment.

    Attributes:
        table: the table of the paper, such as ``Table 1``.
        metric: a headline metric, or ``rounds_to/<target>`` in rounds.
        statistic: the statistic over rounds: ``final``, ``best`` or ``mean_last5``.
        values: the overrides that choose a method -> the published value.
        spread: the overrides that choose a method -> the published standard deviation, if any.
        overrides: the overrides of this row in addition to the preset.
    """

    model_config = STRICT

    table: str
    metric: str
    statistic: Literal["final", "best", "mean_last5"]
    values: dict[str, NonNegativeFloat]
    spread: dict[str, NonNegativeFloat] = {}
    overrides: list[str] = []

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        counts_rounds = self.metric.startswith("rounds_to/")
        if counts_rounds and not _is_number(self.metric.removeprefix("rounds_to/")):
            raise ValueError(f"{self.metric}: should be rounds_to/ and a number")
        for method, value in self.values.items():
            if counts_rounds != (value > 1):
                unit = "a round, above 1" if counts_rounds else "a fraction"
                raise ValueError(f"{self.table}, {method}: {self.metric} should be {unit}")
        return self


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def checked_rows(nodes: Sequence[Node]) -> list[Published]:
    """The rows of a config's ``paper:`` list. Raises InputError if a row is wrong."""
    return [check(Published, node, prefix=f"paper.{number}.") for number, node in enumerate(nodes)]


def published_by(run: Run) -> list[Published]:
    """The published rows in a run's config. An InputError for a wrong row names the folder."""
    rows = run.config.get("paper") or []
    try:
        if not isinstance(rows, list):
            raise InputError(f"paper={rows}: should be a list")
        return checked_rows(rows)
    except InputError as error:
        raise InputError(f"{run.place}: {error}") from error


def merged_rows(runs: Sequence[Run]) -> list[Published]:
    """Merge the runs' ``paper:`` lists: one row for each table, metric, statistic and overrides.

    A row has the values of the methods of all runs, because older runs may have fewer methods.
    """
    found: dict[tuple[str, ...], Published] = {}
    for row in (row for run in runs for row in published_by(run)):
        key = (row.table, row.metric, row.statistic, *row.overrides)
        known = found.get(key, row)
        both = {"values": known.values | row.values, "spread": known.spread | row.spread}
        found[key] = known.model_copy(update=both)
    return list(found.values())
