from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from fedexp.drawing.loss_surface_figure import MarkedModel, loss_surface_figure


def test_the_picture_shows_losses_and_models() -> None:
    losses = np.array([[1.0, 2.0, 4.0], [8.0, 100.0, np.inf]])
    models = [MarkedModel("global model", 0.0, 0.0, 1.5), MarkedModel("client 3", 1.0, 0.5, 2.0)]
    figure = loss_surface_figure(np.arange(3.0), np.arange(2.0), losses, models, (False, True), 7)
    flat: Any = figure.axes[0]
    mesh = flat.collections[0]
    assert mesh.get_array().filled(-1).tolist() == [[1, 2, 4], [8, 100, -1]]
    assert isinstance(mesh.norm, LogNorm)
    assert (flat.get_xlabel(), flat.get_ylabel()) == (
        "distance in parameter space, first axis",
        "distance in parameter space, random direction",
    )
    marks = [tuple(each.get_offsets()[0]) for each in flat.collections[-2:]]
    assert marks == [(0, 0), (1, 0.5)]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["global model, loss 1.5", "client 3, loss 2"]
