"""A sketch of the view that ``fedexp-report --workspace`` saves, from its specification and runs.

``PYTHONPATH=docs python -m generate.workspace_picture RUNS docs/_static/wandb_workspace.png`` makes
the stored picture. Which sections, panels and numbers there are, and in which order, is read from
the specification; colours and fonts are not those of W&B. Of each open section the first row is
shown.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedexp.drawing.style import COLORS
from fedexp.reporting.curves import mean_curve
from fedexp.reporting.labels import short_texts
from fedexp.reporting.report import Report
from fedexp.reporting.runs import Run
from fedexp.reporting.wandb_workspace import build
from fedexp.tracking.jsonl import PER_CLASS
from fedexp.tracking.wandb import flat_summary

_WIDTH, _HEADING, _ROW, _COLUMNS = 11.0, 0.34, 2.1, 3
_SMALL, _GREY, _BAND = 7.5, "#5b6b7f", "#eef1f5"

Groups = Mapping[str, Sequence[Run]]
"""Name of a group of runs -> its runs, one for each seed."""


def sections(report: Report) -> list[dict[str, Any]]:
    """The sections of the view as W&B gets them."""
    spec = build(report, "you", "fedexp")._to_model().spec
    found = json.loads(spec.model_dump_json(by_alias=True, exclude_none=True))
    shown: list[dict[str, Any]] = found["section"]["panelBankConfig"]["sections"]
    return shown


def draw(report: Report) -> Figure:
    """Draw the sections below each other: headings, and the first row of each open section."""
    names = short_texts(list(report.configurations))
    groups = dict(zip(names, report.configurations.values(), strict=True))
    shown = sections(report)
    height = sum(_HEADING + _ROW * each["isOpen"] for each in shown) + _HEADING
    figure = Figure(figsize=(_WIDTH, height), dpi=90)
    top = height
    _legend(figure, groups, top / height, height)
    top -= _HEADING
    for section in shown:
        _heading(figure, section, top, height)
        top -= _HEADING
        if section["isOpen"]:
            for number, panel in enumerate(section["panels"][:_COLUMNS]):
                _panel(figure, panel, groups, (number, top - _ROW, height))
            top -= _ROW
    return figure


def _legend(figure: Figure, groups: Groups, top: float, height: float) -> None:
    for number, name in enumerate(groups):
        place = (0.02 + 0.12 * number, top - 0.6 * _HEADING / height)
        figure.text(*place, f"— {name}", color=COLORS[number], fontsize=10, weight="bold")


def _heading(figure: Figure, section: Mapping[str, Any], top: float, height: float) -> None:
    axes = figure.add_axes((0, (top - _HEADING) / height, 1, 0.85 * _HEADING / height))
    axes.set_axis_off()
    axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, color=_BAND))
    sign = "▾" if section["isOpen"] else "▸"
    axes.text(0.015, 0.5, f"{sign}  {section['name']}", va="center", fontsize=10, weight="bold")
    count = len(section["panels"])
    told = f"{count} panel{'s' if count > 1 else ''}"
    axes.text(0.985, 0.5, told, va="center", ha="right", fontsize=9, color=_GREY)


def _panel(
    figure: Figure, panel: Mapping[str, Any], groups: Groups, place: tuple[int, float, float]
) -> None:
    """Draw a panel; ``place`` has its column, its lower edge and the figure's height in inches."""
    column, bottom, height = place
    left, width = column / _COLUMNS + 0.045, 1 / _COLUMNS - 0.06
    axes = figure.add_axes((left, (bottom + 0.36) / height, width, (_ROW - 0.72) / height))
    axes.tick_params(labelsize=_SMALL)
    config = panel["config"]
    axes.set_title(config.get("chartTitle") or PER_CLASS, fontsize=8.5, loc="left")
    _KINDS[panel["viewType"]](axes, config, groups)


def _lines(axes: Axes, config: Mapping[str, Any], groups: Groups) -> None:
    (metric,) = config["metrics"]
    for color, runs in zip(COLORS, groups.values(), strict=False):
        curve = mean_curve(runs, metric)
        mark = "o" if len(curve) == 1 else None
        axes.plot(curve.x, curve.mean, color=color, linewidth=1.4, marker=mark, markersize=4)
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axes.fill_between(curve.x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.set_xlabel(config["xAxis"], fontsize=_SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _points(axes: Axes, config: Mapping[str, Any], groups: Groups) -> None:
    keys = [config[axis].removeprefix("summary:") for axis in ("xAxis", "yAxis")]
    for color, runs in zip(COLORS, groups.values(), strict=False):
        rows = [flat_summary(run.summary or {}) for run in runs]
        points = [[row[key] for key in keys] for row in rows if {*keys} <= {*row}]
        if points:
            axes.scatter(*zip(*points, strict=True), color=color, s=18)
    axes.set_xlabel(keys[0], fontsize=_SMALL)
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.get_offset_text().set_fontsize(_SMALL)


def _pictures(axes: Axes, config: Mapping[str, Any], groups: Groups) -> None:
    """The last picture of the first run of each group, and the slider below."""
    axes.set_axis_off()
    (key,) = config["mediaKeys"]
    for number, runs in enumerate(groups.values()):
        paths = sorted((runs[0].folder / "figures").glob(f"{key.replace('/', '_')}_[0-9]*.png"))
        inside = axes.inset_axes((number / len(groups), 0.08, 0.96 / len(groups), 0.92))
        inside.imshow(imread(paths[-1]))
        inside.set_axis_off()
    axes.plot([0.1, 0.8], [0, 0], color=_GREY, linewidth=2, transform=axes.transAxes)
    axes.plot([0.8], [0], "o", color=_GREY, transform=axes.transAxes, clip_on=False)
    told = f"step {int(paths[-1].stem.rpartition('_')[2])}"
    axes.text(0.84, 0, told, va="center", fontsize=_SMALL, transform=axes.transAxes)


def _classes(runs: Sequence[Run]) -> dict[str, float]:
    *_, last = (runs[0].folder / "metrics.jsonl").read_text().splitlines()
    found: dict[str, float] = json.loads(last)[PER_CLASS]
    return found


def _bars(axes: Axes, config: Mapping[str, Any], groups: Groups) -> None:
    axes.set_title(config["stringSettings"]["title"], fontsize=8.5, loc="left")
    thick = 0.8 / len(groups)
    for number, (color, runs) in enumerate(zip(COLORS, groups.values(), strict=False)):
        values = _classes(runs)
        places = [place + number * thick for place in range(len(values))]
        axes.barh(places, list(values.values()), thick, color=color, align="edge")
        axes.set_yticks([n + 0.4 for n in range(len(values))], list(values), fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("accuracy", fontsize=_SMALL)


def _table(axes: Axes, config: Mapping[str, Any], groups: Groups) -> None:
    axes.set_axis_off()
    rows = [(name, f"{value:.4f}") for name, value in _classes(next(iter(groups.values()))).items()]
    for number, row in enumerate([("class", "accuracy"), *rows[:6], ("...", "...")]):
        for place, text in zip((0.05, 0.4), row, strict=True):
            weight = "normal" if number else "bold"
            axes.text(place, 0.95 - number * 0.14, text, fontsize=8, va="top", weight=weight)


_KINDS: dict[str, Callable[[Axes, Mapping[str, Any], Groups], None]] = {
    "Run History Line Plot": _lines,
    "Scatter Plot": _points,
    "Media Browser": _pictures,
    "Vega2": _bars,
    "Weave": _table,
}

if __name__ == "__main__":
    draw(Report.read(sys.argv[1])).savefig(sys.argv[2])
