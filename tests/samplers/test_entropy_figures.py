from typing import Any

import numpy as np
import pytest
import torch

from fedexp.drawing.data_figure import DataFigure, pixels
from fedexp.samplers.entropy_figures import entropy_bars, entropy_scatter, membership_heatmap


@pytest.mark.parametrize("clients", [1, 10, 500])
def test_any_number_of_clients_fits_on_a_page(clients: int) -> None:
    shown = torch.arange(clients)
    heatmap = membership_heatmap({1: torch.zeros(clients), 2: shown % 7}, shown)
    for figure in (heatmap, entropy_bars(shown, *torch.rand(2, clients))):
        height, width, _ = pixels(figure).shape
        assert max(height, width) <= 2000


def test_scatter_shows_both_entropies_and_their_correlation() -> None:
    true, estimated = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 2.0, 1.5])
    figure = entropy_scatter(torch.tensor([2, 4, 8]), true, estimated)
    assert isinstance(figure, DataFigure)
    assert {name: list(column) for name, column in figure.data.items()} == {
        "client": [2, 4, 8],
        "true_nats": [0.0, 1.0, 2.0],
        "estimated_nats": [0.5, 2.0, 1.5],
    }
    (points,) = figure.axes[0].collections
    np.testing.assert_allclose(points.get_offsets(), [[0, 0.5], [1, 2], [2, 1.5]])
    # ranks 1 2 3 and 1 3 2: 1 - 6 (0 + 1 + 1) / (3 (9 - 1)) = 0.5
    assert "rho 0.50" in figure.axes[0].get_title()


def test_true_and_estimated_entropy_side_by_side() -> None:
    true, estimated = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 2.0, 1.5])
    axes = entropy_bars(torch.tensor([2, 4, 8]), true, estimated).axes[0]
    for outline, heights, centres in zip(
        axes.patches, (true, estimated), ([-0.21, 0.79, 1.79], [0.21, 1.21, 2.21]), strict=True
    ):
        steps: Any = outline
        values, edges, _ = steps.get_data()
        assert values[::2].tolist() == heights.tolist()
        assert values[1::2].tolist() == [0, 0]  # the gaps
        assert edges.reshape(3, 2).mean(axis=1) == pytest.approx(centres)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["true", "estimated"]
    label = axes.xaxis.get_major_formatter()
    assert [label(place) for place in (-1, 0, 1, 2, 3)] == ["", "2", "4", "8", ""]


def test_scatter_of_equal_entropies_has_no_correlation() -> None:
    figure = entropy_scatter(torch.arange(3), torch.ones(3), torch.tensor([0.5, 2.0, 1.5]))
    assert "rho" not in figure.axes[0].get_title()
    assert pixels(figure).size > 0


def test_memberships_are_blank_where_there_were_none() -> None:
    memberships = {3: torch.tensor([0, -1, 1]), 5: torch.tensor([2, -1, 0])}
    figure = membership_heatmap(memberships, torch.tensor([0, 4, 8]))
    cells: Any = figure.axes[0].collections[0]
    shown = cells.get_array()
    assert shown.filled(-1).tolist() == [[0, -1, 2], [-1, -1, -1], [1, -1, 0]]
    assert cells.norm.boundaries.tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert figure.axes[0].get_ylim() == (2.5, -0.5)  # the first client is on top
    label = figure.axes[0].yaxis.get_major_formatter()
    assert [label(row) for row in (-1, 0, 1, 2, 3)] == ["", "0", "4", "8", ""]
