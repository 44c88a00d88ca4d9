"""The figure of a synthetic dataset."""

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor
from torchvision.utils import make_grid

from fedexp.core.description import Description
from fedexp.core.part import Memory
from fedexp.drawing.style import empty_figure

_LABELLED = 50


def dataset_figure(memories: Iterable[Memory], about: Description) -> dict[str, Figure]:
    """The figure of the first synthetic dataset in ``memories``; empty if none can be drawn."""
    images = next((each["synthetic"] for each in memories if "synthetic" in each), None)
    figure = None if images is None else synthetic_images(images, about)
    return {} if figure is None else {"trajectory/synthetic": figure}


def synthetic_images(images: Tensor, about: Description) -> Figure | None:
    """Draw a grid of images with one row for each class.

    The values of each image are scaled separately, so that they fill the range of colors.

    Args:
        images: [C * ipc, *input_shape], sorted by class.
        about: the description of the dataset. Gray images, color images and flattened square gray
            images can be drawn.

    Returns:
        The figure, or None if the inputs are not images.
    """
    shape = _image_shape(about.input_shape)
    if shape is None:
        return None
    pictures = images.detach().cpu().double().reshape(about.num_classes, -1, *shape)
    columns = pictures.shape[1]
    grid = make_grid(
        pictures.flatten(0, 1), columns, padding=1, normalize=True, scale_each=True, pad_value=1
    )
    inner = grid[: shape[0], 1:-1, 1:-1]  # without the frame around all images
    canvas = inner.permute(1, 2, 0).numpy()
    height, width = canvas.shape[:2]
    scale = min(8 / width, 10 / height, 0.4 / (shape[2] + 1))
    figure = empty_figure(max(3.0, scale * width + 1.5), max(2.5, scale * height + 1))
    axes = figure.subplots()
    axes.imshow(canvas.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    stride = -(-about.num_classes // _LABELLED)
    centres = (np.arange(about.num_classes) + 0.5) * (shape[1] + 1) - 1
    axes.set_yticks(centres[::stride], list(about.classes[::stride]), fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("Synthetic dataset")
    return figure


def _image_shape(input_shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The images' shape [channels, height, width], or None if the inputs are not images."""
    if len(input_shape) == 3 and input_shape[0] in (1, 3):
        return input_shape
    side = math.isqrt(math.prod(input_shape))
    if len(input_shape) == 1 and side > 1 and side**2 == input_shape[0]:
        return 1, side, side
    return None
