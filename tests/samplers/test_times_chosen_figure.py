from typing import Any

import pytest
import torch

from fedexp.drawing.data_figure import DataFigure, pixels
from fedexp.samplers.times_chosen_figure import times_chosen_bars


def test_bars_are_the_counts_in_the_order_of_the_clients() -> None:
    figure = times_chosen_bars(torch.tensor([3, 0, 5]), torch.tensor([0.5, 0.0, 1.5]))
    assert isinstance(figure, DataFigure)
    assert {name: list(column) for name, column in figure.data.items()} == {
        "client": [0, 1, 2],
        "times_chosen": [3, 0, 5],
        "label_entropy_nats": [0.5, 0.0, 1.5],
    }
    (axes,) = figure.axes
    (outline,) = axes.patches
    steps: Any = outline
    heights, edges, _ = steps.get_data()
    assert heights.tolist() == [3, 0, 0, 0, 5]  # bars and the gaps between them
    assert edges.reshape(3, 2).mean(axis=1) == pytest.approx([0, 1, 2])
    (mean,) = axes.lines
    assert list(mean.get_ydata()) == pytest.approx([8 / 3, 8 / 3])


@pytest.mark.parametrize("clients", [1, 10, 1000, 5000])
def test_any_population_fits_on_a_page(clients: int) -> None:
    height, width, _ = pixels(times_chosen_bars(torch.arange(clients), torch.rand(clients))).shape
    assert max(height, width) <= 2000


def test_some_clients_of_many() -> None:
    times = torch.zeros(20_000, dtype=torch.int64)
    times[[3, 70, 19_999]] = torch.tensor([1, 4, 1])
    shown = torch.tensor([3, 19_999])
    figure = times_chosen_bars(times, torch.tensor([0.5, 1.0]), shown)
    assert isinstance(figure, DataFigure)
    assert [list(each) for each in figure.data.values()] == [[3, 19_999], [1, 1], [0.5, 1.0]]
    (axes,) = figure.axes
    assert list(axes.lines[0].get_ydata()) == pytest.approx([6 / 20_000] * 2)
    title: Any = figure.get_suptitle()
    assert title == "6 accepted updates of 20,000 clients; shown: 2 of the 3 clients with any"
    nobody = times_chosen_bars(torch.zeros(9, dtype=torch.int64), torch.zeros(0), shown[:0])
    assert pixels(nobody).any()
