"""An ablation: a method, the method without each of its parts, and without all of them.

``fedexp -m ablate=head,loss`` runs these rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pandas as pd

from fedexp.config.keys import is_below
from fedexp.reporting import statistics
from fedexp.reporting.ablation_rows import read_plain, row_name
from fedexp.reporting.baseline import Baselines
from fedexp.reporting.drawing import Drawing, file_name
from fedexp.reporting.labels import Label, text
from fedexp.reporting.runs import Run
from fedexp.reporting.table import Table, difference_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Difference to the full method"


@dataclass(frozen=True)
class Ablation:
    """The ablation among the runs of a report.

    Attributes:
        full: label of a row -> label of its full method; a full method is mapped to itself.
        names: label -> the name of its row.
        left_out: the rows whose full method is missing, or is not the only one.
        values: the frame of ``statistics.per_run``.
        keys: the labels' keys.
    """

    full: Baselines
    names: Mapping[Label, str]
    left_out: Sequence[Label]
    values: pd.DataFrame
    keys: Sequence[str]

    @classmethod
    def among(
        cls,
        configurations: Mapping[Label, Sequence[Run]],
        values: pd.DataFrame,
        keys: Sequence[str],
    ) -> "Ablation":
        """Find the rows of ablations: those with a run in the sweep of an ablation.

        Rows belong together if they differ only in the ablated groups. The row with the fewest
        plain options is the full method.
        """
        settings: dict[tuple[Label, tuple[str, ...]], dict[Label, list[str]]] = {}
        for label, runs in configurations.items():
            found = (read_plain(run.folder.parent) for run in runs)
            plain: Mapping[str, str] = next(filter(None, found), {})
            chosen = runs[0].choices
            removed = [each for each, option in plain.items() if chosen.get(each) == option]
            setting = tuple(pair for pair in label if not is_below(pair[0], plain))
            if plain:
                settings.setdefault((setting, tuple(plain)), {})[label] = removed
        kept = {key: rows for key, rows in settings.items() if _has_one_full_method(rows)}
        full: dict[Label, Label] = {}
        names: dict[Label, str] = {}
        for (setting, groups), rows in kept.items():
            first = min(rows, key=lambda label: len(rows[label]))
            every = [each for each in groups if each not in rows[first]]
            where = f"{text(setting)}: " if len(kept) > 1 else ""
            for label, removed in rows.items():
                full[label] = first
                names[label] = where + row_name([e for e in removed if e in every], every)
        lacking = [rows for key, rows in settings.items() if key not in kept]
        left_out = [e for rows in lacking if len(rows) > 1 or any(rows.values()) for e in rows]
        return cls(full, names, left_out, values, keys)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The paired differences, see ``statistics.differences``, with a column ``row``."""
        frame = statistics.differences(self.values, self.keys, self.full)
        names = {tuple(value for _, value in each): n for each, n in self.names.items()}
        rows = frame[list(self.keys)].itertuples(index=False, name=None)
        frame.insert(0, "row", [names[each] for each in rows])
        return frame

    def table(self, metrics: Sequence[str], statistic: str) -> Table | None:
        """The table of the differences; None if no row has one."""
        if self.frame.empty:
            return None
        made = difference_table(self.frame, ["row"], metrics, statistic, TITLE)
        note = "A row without a part has the plain default in its place, and all else as it is."
        made.notes.append(note)
        return made

    def drawings(self, metrics: Sequence[str], statistic: str) -> list[Drawing]:
        """A picture for each metric: a bar for each row, with its 95 % interval."""
        found = []
        for metric in metrics:
            shown = statistics.statistic_shown(metric, statistic)
            rows = self.frame[(self.frame["metric"] == metric) & (self.frame["statistic"] == shown)]
            if rows["difference"].map(math.isfinite).any():
                name, title = f"ablation_{file_name(metric)}", f"{metric}: {TITLE.lower()}"
                found.append(Drawing(name, title, _drawing(rows, f"{title}, 95 % interval")))
        return found


def _has_one_full_method(rows: Mapping[Label, Sequence[str]]) -> bool:
    """Whether one row has fewer plain options than all others."""
    counts = sorted(map(len, rows.values()))
    return len(counts) > 1 and counts[0] < counts[1]


def _drawing(rows: pd.DataFrame, title: str) -> "Callable[[], Figure]":
    columns = rows["row"], rows["difference"], rows["half_width"]
    return partial(
        _draw, [row for row in zip(*columns, strict=True) if math.isfinite(row[1])], title
    )


def _draw(rows: Sequence[tuple[str, float, float]], title: str) -> "Figure":
    """Draw a bar from 0 for each (name, difference, half of its interval)."""
    from fedexp.drawing.panels import name_axes
    from fedexp.drawing.style import COLORS
    from fedexp.reporting.bars import bar_axes, error_bars, or_zero

    names, gains, widths = zip(*rows, strict=True)
    figure, axes = bar_axes(names, 0.35)
    interval = error_bars(list(map(or_zero, widths)))
    axes.barh(range(len(names)), gains, height=0.6, xerr=interval, capsize=3, color=COLORS[0])
    axes.axvline(0, color="black", linewidth=0.8)
    name_axes(axes, title)
    return figure
