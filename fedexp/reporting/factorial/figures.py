"""Pictures of a factorial experiment: all effects with intervals, and the interactions."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.drawing.panels import add_axes, name_axes, text_width
from fedexp.drawing.style import COLORS, REFERENCE, PlainFigure
from fedexp.reporting.bars import bar_axes, error_bars, or_zero
from fedexp.reporting.factorial.design import HIGH, LOW, Design
from fedexp.reporting.factorial.effects import Fit
from fedexp.reporting.families import LEVEL

_SIDE = 1.45
"""Inches of a panel's axes."""
_GAP = 0.3
_LINE = 0.16
"""Inches of a line of text below the panels."""


def draw_effects(fit: Fit, title: str) -> Figure:
    """Each effect with its interval; the band spans the effects that are too small to matter.

    Filled points are effects whose corrected p-value is at most ``LEVEL``.
    """
    table = fit.table
    figure, axes = bar_axes(table["effect"].tolist(), 0.27)
    axes.axvspan(-fit.smallest, fit.smallest, color=REFERENCE, alpha=0.25, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axhline(len(fit.design.factors) - 0.5, color=REFERENCE, linewidth=0.8)
    for place, row in enumerate(table.to_dict("records")):
        color = COLORS[place >= len(fit.design.factors)]
        axes.errorbar(
            row["estimate"],
            place,
            xerr=error_bars([or_zero(row["half_width"])]),
            fmt="o",
            markersize=5,
            capsize=3,
            color=color,
            markerfacecolor=color if row["p_corrected"] <= LEVEL else "white",
        )
    name_axes(axes, title)
    return figure


def draw_interactions(fit: Fit, title: str) -> Figure:
    """A panel for each pair of factors: the model's mean at the four combinations of levels.

    Parallel lines mean that the two effects add up.
    """
    factors = list(fit.design.factors)
    size, texts = len(factors) - 1, [title, *_lines(fit.design)]
    span, below = size * (_SIDE + _GAP), 0.55 + _LINE * len(texts)
    across, up = max(span + 1.0, text_width(texts, 8) + 0.3), below + span + 0.2
    figure = PlainFigure(figsize=(across, up))
    low, high = _limits(fit)
    for row, column in itertools.combinations_with_replacement(range(size), 2):
        left = 0.8 + column * (_SIDE + _GAP)
        bottom = below + (size - 1 - row) * (_SIDE + _GAP)
        axes = add_axes(figure, left, bottom, _SIDE, _SIDE)
        first, second = factors[row], factors[column + 1]
        _draw_pair(axes, fit, first, second)
        axes.set_ylim(low, high)
        axes.set_title(second if row == 0 else "", fontsize=9)
        if column > row:
            axes.tick_params(labelleft=False, labelbottom=False)
        else:
            axes.set_ylabel(first, fontsize=9)
            names = [_short(fit.design, second, sign) for sign in (LOW, HIGH)]
            axes.set_xticks([0, 1], names, fontsize=7)
    figure.text(0.15 / across, 0.1 / up, "\n".join(texts), fontsize=8, linespacing=1.4)
    return figure


def _lines(design: Design) -> list[str]:
    """Which level of the factor at the left of a row a line has."""
    rows = list(design.factors)[:-1]
    levels = [[_short(design, name, sign) for sign in (LOW, HIGH)] for name in rows]
    return [f"{n}: dashed {of[0]}, solid {of[1]}" for n, of in zip(rows, levels, strict=True)]


def _draw_pair(axes: Axes, fit: Fit, first: str, second: str) -> None:
    """Lines over the levels of ``second``, one for each level of ``first``."""
    for sign, color, dashes in ((LOW, COLORS[0], "--"), (HIGH, COLORS[1], "-")):
        values = [fit.predicted((first, second), (sign, other)) for other in (LOW, HIGH)]
        axes.plot([0, 1], values, dashes, color=color, marker="o", markersize=4)
    axes.set_xlim(-0.25, 1.25)
    axes.set_xticks([0, 1])


def _limits(fit: Fit) -> tuple[float, float]:
    """The same axis of values for all panels."""
    signs = list(itertools.product((LOW, HIGH), repeat=2))
    pairs = itertools.combinations(fit.design.factors, 2)
    values = [fit.predicted(pair, each) for pair in pairs for each in signs]
    margin = 0.12 * (max(values) - min(values)) or 0.01
    return min(values) - margin, max(values) + margin


def _short(design: Design, factor: str, sign: int) -> str:
    """The value of the level's first key, such as ``prototype``."""
    return next(iter(design.level(factor, sign).values()))
