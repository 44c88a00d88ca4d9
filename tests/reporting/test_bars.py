"""Bars start at 0; where they would look alike there are points, and the axis says so."""

from pathlib import Path

import pandas as pd
import pytest
from support.run_files import accuracies, write_methods, write_run

from fedexp.reporting.bars import bar_figures
from fedexp.reporting.pictures import pictures
from fedexp.reporting.report import Report


def drawn(means: list[float], stds: list[float]) -> tuple[float, int, str]:
    """The lower end of the axis, the number of bars and the axis's name."""
    rows = pd.DataFrame({"mean": means, "std": stds})
    (draw,) = bar_figures(rows, [f"method {n}" for n in range(len(means))], "accuracy")
    (axes,) = draw().axes
    return axes.get_xlim()[0], len(axes.patches), axes.get_xlabel()


def test_close_values_are_points_on_an_axis_that_does_not_start_at_0() -> None:
    low, bars, name = drawn([0.938, 0.952, 0.957], [0.004, 0.004, 0.002])
    assert 0.92 < low < 0.938 - 0.004
    assert bars == 0
    assert name == "accuracy, axis not from 0"


@pytest.mark.parametrize(
    ("means", "stds"),
    [([0.3, 0.9], [0.0, 0.0]), ([0.9, 0.91], [0.3, 0.0]), ([0.5, 0.5], [0.0, 0.0])],
    ids=["far apart", "wide deviation", "equal"],
)
def test_other_values_are_bars_from_0(means: list[float], stds: list[float]) -> None:
    low, bars, name = drawn(means, stds)
    assert low == pytest.approx(0, abs=1e-9)
    assert (bars, name) == (len(means), "accuracy")


def test_titles_of_curves_say_what_the_bands_are(tmp_path: Path) -> None:
    history = [{"global/accuracy": value} for value in (0.1, 0.2)]
    write_run(tmp_path / "0", ["seed=0"], history)
    titles = [each.title for each in pictures(Report.read(tmp_path)).drawn]
    assert titles[0] == "global/accuracy over rounds"
    write_run(tmp_path / "1", ["seed=1"], history)
    titles = [each.title for each in pictures(Report.read(tmp_path)).drawn]
    assert titles[0] == "global/accuracy over rounds; bands: standard deviation over seeds"


def test_titles_of_bars_say_what_the_error_bars_are(tmp_path: Path) -> None:
    histories = [accuracies(0.5), accuracies(0.6)]
    write_methods(tmp_path, {"fedavg": histories, "fednh": histories})
    titles = [each.title for each in pictures(Report.read(tmp_path)).drawn]
    assert titles == ["global/accuracy (final); error bars: standard deviation over seeds"]
