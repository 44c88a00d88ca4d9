"""Bar charts of our values and the published values."""

from collections.abc import Iterator, Sequence
from functools import partial

from matplotlib.figure import Figure

from fedexp.drawing.panels import legend_below, name_axes
from fedexp.drawing.style import COLORS, REFERENCE
from fedexp.reporting.bars import Bars, bar_axes, draw, or_zero
from fedexp.reporting.drawing import Drawing, file_name
from fedexp.reporting.papers.table import by_column, method_names
from fedexp.reporting.papers.verdicts import Verdict

_MOST_COLUMNS = 6
"""Largest number of table columns that are drawn without ``--figures all``."""


def bar_drawings(verdicts: Sequence[Verdict]) -> Iterator[Drawing]:
    """Yield a bar chart of our and the published values for each table column that has runs."""
    columns = [
        members for members in by_column(verdicts) if any(each.cell.ours for each in members)
    ]
    for number, members in enumerate(columns):
        cell = members[0].cell
        name = file_name(f"paper {cell.experiment} {cell.table} {cell.metric}")
        title = f"{cell.experiment}, {cell.table}: ours and the paper's"
        title += "; error bars: standard deviations"
        is_extra = number >= _MOST_COLUMNS
        yield Drawing(name, title, partial(paper_bars, members), is_extra)


def paper_bars(verdicts: Sequence[Verdict]) -> Figure:
    """Draw our values and the published values, with standard deviations."""
    cells = [verdict.cell for verdict in verdicts]
    names = zip(method_names(verdicts), cells, strict=True)
    labels = [f"{name}, at least" if cell.at_bound else name for name, cell in names]
    figure, axes = bar_axes(labels, 0.45)
    series = [
        Bars([n + shift for n in range(len(cells))], values, list(map(or_zero, spreads)), *style)
        for shift, values, spreads, *style in (
            (-0.2, [c.published for c in cells], [c.spread for c in cells], REFERENCE, "paper"),
            (0.2, [c.mean for c in cells], [c.std for c in cells], COLORS[0], "ours"),
        )
    ]
    axis = draw(axes, series, 0.38)
    name_axes(axes, f"{cells[0].metric} ({cells[0].statistic}){axis}")
    legend_below(figure, [axes])
    return figure
