"""Features of several models, projected to the plane (FedNH, Figures 1, 2, 6; FedSC, Figure 7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedexp.drawing.style import class_colors, empty_figure, legend_above, open_frame
from fedexp.drawing.texts import legible

Projection = Literal["pca", "tsne"]

_AXES = {"pca": "principal component {}", "tsne": "t-SNE coordinate {}"}
_LEGEND_CLASSES = 20
"""Largest number of classes that get a legend."""
_MARKERS = "os^Dv<>pP*"


@dataclass(frozen=True)
class ModelFeatures:
    """One model's features of the samples.

    Attributes:
        title: the title of the model's panel.
        z: [n, d] features of the samples; all panels show these samples.
        prototypes: [C, d] the head's vector for each class, drawn if d = 2. None if the head has no
            such vectors.
    """

    title: str
    z: Tensor
    prototypes: Tensor | None = None


def feature_map(
    models: Sequence[ModelFeatures],
    labels: Tensor,
    classes: Sequence[str],
    projection: Projection,
    shown: Sequence[int],
    class_counts: Mapping[str, Tensor],
) -> Figure:
    """Draw the samples' features, coloured by class, in one panel for each model.

    The features of all models are projected together, so positions can be compared between panels.
    Two-dimensional features are drawn without projection, with an arrow for each prototype. All
    arrows of a panel have the same scale. Bars below the panels show the class counts.

    Args:
        models: the features of each model; one panel shows one model.
        labels: [n] the samples' classes, all of them in ``shown``.
        classes: the names of all C classes.
        projection: principal components or t-SNE.
        shown: the classes that are drawn.
        class_counts: client -> [C] its training samples of each class; may be empty.
    """
    classes = list(map(legible, classes))
    points = project(np.concatenate([model.z.cpu().numpy() for model in models]), projection)
    rows = 2 if class_counts else 1
    size = (max(4.4 * len(models), 5.5 * (rows - 1)) + 1.6, 4.4 + 2.2 * (rows - 1))
    figure = empty_figure(*size)
    grid = figure.add_gridspec(rows, 1, height_ratios=[1, 0.45][:rows])
    panels = grid[0].subgridspec(1, len(models)).subplots(squeeze=False, sharex=True, sharey=True)
    is_plane, styles = models[0].z.shape[1] == 2, _styles(len(shown))
    radius = float(np.linalg.norm(points, axis=1).max())
    for axes, model, own in zip(panels[0], models, np.split(points, len(models)), strict=True):
        for number, style in zip(shown, styles, strict=True):
            axes.scatter(*own[(labels == number).cpu().numpy()].T, label=classes[number], **style)
        axes.set_title(model.title)
        if is_plane:
            _draw_plane(axes, model.prototypes, shown, styles, radius)
        else:
            axes.set(xticks=[], yticks=[], xlabel=_AXES[projection].format(1))
    if not is_plane:
        panels[0][0].set_ylabel(_AXES[projection].format(2))
    if len(shown) <= _LEGEND_CLASSES:
        handles = panels[0][0].get_legend_handles_labels()
        options: dict[str, Any] = {"title": "class", "frameon": False, "markerscale": 1.8}
        figure.legend(*handles, loc="outside right upper", **options)
    if class_counts:
        _draw_counts(figure.add_subplot(grid[1]), class_counts, classes, shown)
    has_arrows = is_plane and any(model.prototypes is not None for model in models)
    arrows = ", class prototypes as arrows" if has_arrows else ""
    figure.suptitle(f"Features of the test split{arrows}")
    return figure


def project(points: NDArray[np.float32], projection: Projection) -> NDArray[np.float32]:
    """Project n points [n, d] of d numbers to the plane [n, 2], deterministically.

    Points with d = 2 are returned unchanged; points with d = 1 get a second coordinate, 0. A single
    point keeps its first two numbers. With fewer than four points, t-SNE is replaced by PCA.
    """
    if len(points) < 2 or points.shape[1] <= 2:
        return np.pad(points[:, :2], [(0, 0), (0, max(0, 2 - points.shape[1]))])
    from sklearn.decomposition import PCA  # slow to import; not every run draws features
    from sklearn.manifold import TSNE

    # t-SNE's perplexity: scikit-learn's default of 30, or less if there are few points.
    nearby = min(30.0, (len(points) - 1) / 3)
    method = PCA(2, random_state=0)
    if projection == "tsne" and nearby >= 1:
        method = TSNE(2, init="pca", perplexity=nearby, random_state=0)
    plane: NDArray[np.float32] = method.fit_transform(points)
    return plane


def _draw_plane(
    axes: Axes,
    prototypes: Tensor | None,
    shown: Sequence[int],
    styles: Sequence[Mapping[str, Any]],
    radius: float,
) -> None:
    """Draw axes through the origin, and prototypes as arrows; the longest is ``radius`` long."""
    axes.axhline(0, color="gray", linewidth=0.5, zorder=0)
    axes.axvline(0, color="gray", linewidth=0.5, zorder=0)
    axes.set(xlabel="z₁", ylabel="z₂", aspect="equal")
    if prototypes is None:
        return
    vectors = prototypes.cpu().numpy()[list(shown)]
    vectors = vectors * radius / max(np.linalg.norm(vectors, axis=1).max(), 1e-12)
    for vector, style in zip(vectors, styles, strict=True):
        arrow = {"arrowstyle": "-|>", "color": style["color"], "linewidth": 1.8}
        axes.annotate("", vector, (0, 0), arrowprops=arrow)
    axes.update_datalim(np.concatenate([vectors, -vectors]))
    axes.autoscale_view()


def _draw_counts(
    axes: Axes, class_counts: Mapping[str, Tensor], classes: Sequence[str], shown: Sequence[int]
) -> None:
    """Draw each client's training samples of the shown classes as bars (FedNH, Figure 6e)."""
    places, width = np.arange(len(shown)), 0.8 / len(class_counts)
    shades = np.linspace(0.15, 0.75, len(class_counts))
    for number, (client, counts) in enumerate(class_counts.items()):
        left = places - 0.4 + (number + 0.5) * width
        heights = counts.cpu().numpy()[list(shown)]
        axes.bar(left, heights, width, color=str(shades[number]), label=client)
    names = [classes[number] for number in shown]
    turned = 90 if sum(map(len, names)) > 70 else 0
    axes.set_xticks(places, names, rotation=turned, fontsize=8 if len(names) <= 30 else 5)
    axes.set(xlabel="class", ylabel="training samples", xlim=(-0.6, len(shown) - 0.4))
    open_frame(axes)
    legend_above(axes, fontsize=8, ncols=len(class_counts))


def _styles(num_classes: int) -> list[dict[str, Any]]:
    """Colour and marker of each class."""
    looks = zip(class_colors(num_classes)[:num_classes], cycle(_MARKERS), strict=False)
    return [{"color": color, "marker": each, "s": 9, "linewidths": 0} for color, each in looks]
