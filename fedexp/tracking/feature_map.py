"""Features of several models, projected to the plane (FedNH, Figure 6; FedSC, Figure 7)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

Projection = Literal["pca", "tsne"]

_LEGEND_CLASSES = 20
"""Largest number of classes that get a legend."""


def feature_map(
    models: Mapping[str, Tensor],
    labels: Tensor,
    classes: Sequence[str],
    projection: Projection,
) -> Figure:
    """One panel for each model, the same samples in each, coloured by class.

    All models are projected together, so that positions can be compared between panels.

    Args:
        models: title -> features z [n, d] of the same n samples.
        labels: [n].
        classes: C names.
        projection: principal components or t-SNE.
    """
    points = project(np.concatenate([z.cpu().numpy() for z in models.values()]), projection)
    panels = np.split(points, len(models))
    figure = Figure(figsize=(4.4 * len(models) + 1.6, 4.4), dpi=130, layout="constrained")
    drawn = figure.subplots(1, len(models), squeeze=False, sharex=True, sharey=True)[0]
    palette = _palette(len(classes))
    for axes, title, panel in zip(drawn, models, panels, strict=True):
        axes.scatter(*panel.T, c=palette[labels.cpu().numpy()], s=5, linewidths=0)
        axes.set(title=title, xticks=[], yticks=[])
    if len(classes) <= _LEGEND_CLASSES:
        for color, name in zip(palette, classes, strict=True):
            drawn[-1].scatter([], [], color=color, s=18, label=name)
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    figure.suptitle(f"Features of the test split ({projection.upper()})")
    return figure


def _palette(num_classes: int) -> NDArray[np.float64]:
    """[C, 4] an RGBA colour for each class: distinct ones up to 10 classes, else a spectrum."""
    if num_classes <= 10:
        return np.array(colormaps["tab10"](np.arange(num_classes)))
    return np.array(colormaps["nipy_spectral"](np.linspace(0.03, 0.97, num_classes)))


def project(points: NDArray[np.float32], projection: Projection) -> NDArray[np.float32]:
    """Project [n, d] to [n, 2], deterministically; points with d = 2 are returned as they are."""
    if points.shape[1] == 2:
        return points
    method = PCA(2) if projection == "pca" else TSNE(2, init="pca", random_state=0)
    plane: NDArray[np.float32] = method.fit_transform(points)
    return plane
