"""The report's pictures as PNG, and on request as PDF."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fedexp.reporting.bars import bar_figures
from fedexp.reporting.curves import curve_figures, metric_panels
from fedexp.reporting.drawing import Drawing, file_name
from fedexp.reporting.hyperparameter import hyperparameter_figure, varied_number
from fedexp.reporting.labels import short_texts
from fedexp.reporting.report import Report
from fedexp.reporting.saved_arrays import SAVED
from fedexp.reporting.statistics import AXES, fills_window

_DPI = 120
_LOSS = "train/cross_entropy"


@dataclass(frozen=True)
class Picture:
    """A figure of the report, encoded as image files.

    Attributes:
        name: the name of the image files, without suffix.
        title: the heading above the picture.
        png, pdf: the contents of the files; ``pdf`` is empty if no PDF was asked for.
    """

    name: str
    title: str
    png: bytes
    pdf: bytes = b""


class Pictures(NamedTuple):
    """The pictures of a report.

    Attributes:
        drawn: the pictures in order.
        left_out: the names of pictures that were not asked for.
        problems: a line for each picture that cannot be drawn, and for each file of saved arrays
            that is left out of its picture.
    """

    drawn: list[Picture]
    left_out: list[str]
    problems: list[str]


def pictures(report: Report, every: bool = False, with_pdf: bool = False) -> Pictures:
    """Draw the pictures of a report.

    Args:
        report: the report whose runs are drawn.
        every: whether to draw all pictures. If false, pictures with ``Drawing.is_extra``, such as
            second pages, are left out, because drawing takes most of a report's time.
        with_pdf: whether to draw each picture as PDF, too.
    """
    found = Pictures([], [], [])
    names: dict[str, int] = {}
    for each in _drawings(report, found.problems):
        names[each.name] = names.get(each.name, 0) + 1
        name = each.name if names[each.name] == 1 else f"{each.name}_{names[each.name]}"
        if each.is_extra and not every:
            found.left_out.append(name)
            continue
        try:
            if figure := each.draw():
                pdf = _encode(figure, "pdf") if with_pdf else b""
                found.drawn.append(Picture(name, each.title, _encode(figure, "png"), pdf))
        except Exception as error:  # Matplotlib may raise any error for unforeseen numbers
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            found.problems.append(f"figure {name}: cannot be drawn, left out ({reason})")
    return found


def _drawings(report: Report, problems: list[str]) -> Iterator[Drawing]:
    every, smooth = report.configurations, report.measures.smooth
    configurations = {
        label: [run for run in runs if run.finished] or runs for label, runs in every.items()
    }
    several = any(len(runs) > 1 for runs in configurations.values())
    spread = "standard deviation over seeds"
    bands, bars = (f"; {each}: {spread}" if several else "" for each in ("bands", "error bars"))
    for metric in report.curve_metrics:
        against = report.measures.against
        pages = curve_figures(configurations, metric, smooth, report.targets, against=against)
        title = f"{metric} over {AXES[against]}{_smoothed(report, metric)}{bands}"
        yield from _pages(f"curves_{file_name(metric)}", title, pages)
    pages = curve_figures(configurations, _LOSS, smooth, (), deviation=f"{_LOSS}_std")
    smoothed = _smoothed(report, _LOSS)
    title = f"Cross-entropy of local training{smoothed}; bands: deviation over clients"
    yield from _pages(f"curves_{file_name(_LOSS)}", title, pages)
    yield from _values(report, bars)
    yield from report.further_drawings()
    for prefix, title in (("geometry", "Angles and alignment"), ("sampler", "Client sampling")):
        metrics = [name for name in report.round_metrics if name.startswith(f"{prefix}/")]
        yield from _pages(prefix, f"{title}{bands}", metric_panels(configurations, metrics))
    for picture in SAVED:
        yield from _pages(picture.name, picture.title, picture.pages(configurations, problems))


def _smoothed(report: Report, metric: str) -> str:
    """What the title says of the filter; empty if no curve is smoothed."""
    is_any = any(fills_window(run.history, metric) for run in report.runs)
    return ", smoothed" if report.measures.smooth and is_any else ""


def _values(report: Report, error_bars: str) -> Iterator[Drawing]:
    """Yield bars of each metric and, if one numeric key was varied, a plot against this key.

    ``error_bars`` says in the titles what error bars are; empty if there are none.
    """
    key, keys, results = varied_number(report.configurations), report.keys, report.results
    for metric in report.curve_metrics:
        rows = results[(results["metric"] == metric) & (results["statistic"] == report.statistic)]
        labels = [
            tuple(zip(keys, map(str, row), strict=True))
            for row in rows[keys].itertuples(index=False, name=None)
        ]
        title = f"{metric} ({report.statistic})"
        pages = bar_figures(rows, short_texts(labels), title) if len(rows) > 1 else []
        for number, page in enumerate(pages):
            is_extra = number > 0 or key is not None
            yield Drawing(f"bars_{file_name(metric)}", f"{title}{error_bars}", page, is_extra)
        if key:
            draw = partial(hyperparameter_figure, rows, keys, key, title)
            name, title = file_name(f"{metric} {key}"), f"{metric} against {key}"
            yield Drawing(f"values_{name}", f"{title}{error_bars}", draw)
            gain = partial(draw, relative=True)
            yield Drawing(f"gain_{name}", f"{title}, gain", gain, is_extra=True)


def _pages(
    name: str, title: str, pages: Iterable[Callable[[], Figure | None]]
) -> Iterator[Drawing]:
    for number, draw in enumerate(pages):
        yield Drawing(name, title, draw, is_extra=number > 0)


def _encode(figure: Figure, kind: str) -> bytes:
    buffer = BytesIO()
    # Leave out the date, so that two reports of the same runs have equal files.
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    fast: dict[str, Any] = {"pil_kwargs": {"compress_level": 3}} if kind == "png" else {}
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata, **fast)
    return buffer.getvalue()
