"""The map of gains."""

import math

import pandas as pd
import pytest

from fedexp.reporting.leaderboard.figures import gains_map
from fedexp.reporting.leaderboard.standings import standings


def test_a_gain_that_is_rounded_to_zero_has_no_sign() -> None:
    accuracies = {"fedavg": 0.5, "up": 0.512, "level": 0.497, "down": 0.494}
    rows = [["a_b", method, "", 0, 0, math.nan, value] for method, value in accuracies.items()]
    columns = ["cell", "method", "setting", "seed", "trial", "score", "accuracy"]
    frame = standings(
        pd.DataFrame(rows, columns=columns).assign(objective="", control=""), "accuracy"
    )
    (axes,) = gains_map(frame, ["a_b"], "accuracy").axes
    assert [text.get_text() for text in axes.texts] == ["+0.01", "0.00", "-0.01"]


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["digits_dir1", "digits_long_tail"], ["dir1", "long\ntail"]),
        (["cifar10_dir1", "digits_dir1"], ["cifar10\ndir1", "digits\ndir1"]),
        (["digits", "digits_dir1"], ["digits", "digits\ndir1"]),
    ],
)
def test_every_cell_has_a_name_of_its_own(cells: list[str], shown: list[str]) -> None:
    rows = [[cell, method, "", 0, 0.5] for cell in cells for method in ("fedavg", "mine")]
    finals = pd.DataFrame(rows, columns=["cell", "method", "setting", "seed", "accuracy"])
    frame = standings(finals.assign(objective="", control=""), "accuracy")
    (axes,) = gains_map(frame, cells, "accuracy").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == shown


def test_a_long_name_leaves_room_for_the_numbers() -> None:
    control = "fedavg optimizer=sgd_plain aggregator=uniform sampler=weighted"
    rows = [["digits", method, "", 0, 0.5] for method in ("fedavg", control)]
    finals = pd.DataFrame(rows, columns=["cell", "method", "setting", "seed", "accuracy"])
    frame = standings(finals.assign(objective="", control=""), "accuracy")
    figure = gains_map(frame, ["digits"], "accuracy")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (number,) = axes.texts
    assert number.get_window_extent().width < axes.get_window_extent().width
    assert axes.get_window_extent().width / figure.dpi > 1
