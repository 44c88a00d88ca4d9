"""The report's pictures, each as PNG and as PDF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure

from fedexp.reporting.bars import bar_figures, paper_bars
from fedexp.reporting.curves import curve_figures, metric_panels
from fedexp.reporting.hyperparameter import hyperparameter_figure, varied_number
from fedexp.reporting.labels import short_texts
from fedexp.reporting.paper_table import by_column
from fedexp.reporting.report import Report
from fedexp.reporting.saved_arrays import (
    entropy_panels,
    saved_arrays,
    selection_panels,
    similarity_panels,
)

_DPI = 120


@dataclass(frozen=True)
class Picture:
    """A figure, drawn.

    Attributes:
        name: of its files, without suffix.
        title: what it shows.
        png, pdf: the files' contents.
    """

    name: str
    title: str
    png: bytes
    pdf: bytes


def pictures(report: Report) -> list[Picture]:
    """Every picture that the report's runs allow, in order."""
    found: list[Picture] = []
    names: dict[str, int] = {}
    for name, title, figure in _figures(report):
        names[name] = names.get(name, 0) + 1
        unique = name if names[name] == 1 else f"{name}_{names[name]}"
        found.append(Picture(unique, title, _encode(figure, "png"), _encode(figure, "pdf")))
    return found


def _figures(report: Report) -> Iterator[tuple[str, str, Figure]]:
    """Name, title and figure."""
    configurations, smooth = report.configurations, report.measures.smooth
    for metric in report.curve_metrics:
        title = f"{metric} over rounds" + (", smoothed" if smooth else "")
        figures = curve_figures(configurations, metric, smooth, report.targets)
        yield from _named(f"curves_{_file(metric)}", title, figures)
    yield from _values(report)
    for members in by_column(report.verdicts):
        cell = members[0].cell
        if any(each.cell.ours for each in members):
            name = _file(f"paper {cell.experiment} {cell.table} {cell.metric}")
            yield (
                name,
                f"{cell.experiment}, {cell.table}: ours and the paper's",
                paper_bars(members),
            )
    for prefix, title in (("geometry/", "Angles and alignment"), ("sampler/", "Client sampling")):
        measured = {name for run in report.runs for row in run.history for name in row}
        if metrics := sorted(name for name in measured if name.startswith(prefix)):
            name = prefix.rstrip("/")
            yield from _named(name, title, metric_panels(configurations, metrics))
    for name, title, draw in (
        ("sampler_times_chosen", "Clients chosen, by label entropy", selection_panels),
        ("sampler_entropy_bars", "Label entropy of the clients", entropy_panels),
        ("heatmap_prototype_similarity", "Similarity of class prototypes", similarity_panels),
    ):
        if figure := draw(saved_arrays(configurations, name)):
            yield name, title, figure


def _values(report: Report) -> Iterator[tuple[str, str, Figure]]:
    """Bars of each metric, or the metric against the numeric key that was varied."""
    key, keys, results = varied_number(report.configurations), report.keys, report.results
    for metric in report.curve_metrics:
        rows = results[(results["metric"] == metric) & (results["statistic"] == report.statistic)]
        labels = [
            tuple(zip(keys, map(str, row), strict=True))
            for row in rows[keys].itertuples(index=False, name=None)
        ]
        title = f"{metric} ({report.statistic})"
        if len(rows) > 1:
            figures = bar_figures(rows, short_texts(labels), title)
            yield from _named(f"bars_{_file(metric)}", title, figures)
        for relative in (False, True) if key else ():
            figure = hyperparameter_figure(rows, keys, key or "", title, relative)
            if figure is not None:
                gain = ", gain" if relative else ""
                name = f"{'gain' if relative else 'values'}_{_file(f'{metric} {key}')}"
                yield name, f"{metric} against {key}{gain}", figure


def _named(name: str, title: str, figures: Iterable[Figure]) -> Iterator[tuple[str, str, Figure]]:
    return ((name, title, figure) for figure in figures)


def _encode(figure: Figure, kind: str) -> bytes:
    buffer = BytesIO()
    # Without the date, so that the same report is the same file.
    metadata = {"CreationDate": None} if kind == "pdf" else {}
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    figure.set_layout_engine("none")  # laid out: the next format takes it as it is
    return buffer.getvalue()


def _file(text: str) -> str:
    """The text as part of a file's name."""
    return "".join(each if each.isalnum() or each in "-." else "_" for each in text)
