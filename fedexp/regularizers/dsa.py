"""Differentiable Siamese Augmentation of a synthetic dataset (Zhao and Bilen, ICML 2021).

Each training step uses one of six operations, drawn at random. The parameters of the operation are
drawn separately for each image. All operations are differentiable with respect to the images. The
constants come from the MTT code for dataset distillation (Cazenavette et al., CVPR 2022).

Images are [n, channels, height, width] and normalized, so that 0 is the mean colour. Each parameter
is a tensor [n] with one value for each image.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fedexp.core.transfer import to_device

Transform = Callable[[Tensor], Tensor]
"""A function images -> images of the same shape, with the same parameters in every call."""

_SHIFT = 0.125
_CUTOUT = 0.5
_SCALE = 1.2
_DEGREES = 15.0


def draw_transform(
    shape: tuple[int, ...], generator: Generator, device: torch.device | str = "cpu"
) -> Transform:
    """Draw one of the six operations, and its random parameters for images of this shape.

    Args:
        shape: [n, channels, height, width].
        generator: a CPU generator; the number of draws from it depends on the operation.
        device: the device of the images.
    """
    operation = _OPERATIONS[int(torch.randint(len(_OPERATIONS), (), generator=generator))]
    return operation(shape, generator, torch.device(device))


def color(images: Tensor, brightness: Tensor, saturation: Tensor, contrast: Tensor) -> Tensor:
    """Change the brightness, the saturation and the contrast of each image, in this order.

    ``brightness`` is added to the image. ``saturation`` multiplies each pixel's difference from its
    gray value, which is its mean over the channels. ``contrast`` multiplies each pixel's difference
    from the mean of the image. The arguments 0, 1, 1 change nothing.
    """
    images = images + _per_image(brightness)
    gray = images.mean(dim=1, keepdim=True)
    images = (images - gray) * _per_image(saturation) + gray
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return (images - mean) * _per_image(contrast) + mean


def shift(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Move each image by ``down`` and ``right`` whole pixels, and fill the free area with zeros."""
    rows, columns = _pixels(images)
    return _sampled(images, rows - _per_row(down), columns - _per_row(right))


def cutout(images: Tensor, row: Tensor, column: Tensor, size: tuple[int, int]) -> Tensor:
    """Set a rectangle of ``size`` (height, width) around the pixel ``row``, ``column`` to zero."""
    rows, columns = _pixels(images)
    top, left = _per_row(row - size[0] // 2), _per_row(column - size[1] // 2)
    inside = (rows >= top) & (rows < top + size[0]) & (columns >= left) & (columns < left + size[1])
    return images.masked_fill(inside[:, None], 0)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror the images left to right where ``flipped`` [n] bool is true."""
    return torch.where(_per_image(flipped), images.flip(-1), images)


def scale(images: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Shrink each image around its centre by the factors ``vertical`` and ``horizontal``.

    A factor below 1 enlarges the image. The values between pixels are interpolated bilinearly, and
    the values outside the image are zero.
    """
    rows, columns, centre = _around_centre(images)
    return _sampled(
        images, rows * _per_row(vertical) + centre[0], columns * _per_row(horizontal) + centre[1]
    )


def rotate(images: Tensor, angle: Tensor) -> Tensor:
    """Turn each image counter-clockwise by ``angle`` in radians.

    The values between pixels are interpolated bilinearly, and the values outside the image are
    zero.
    """
    rows, columns, centre = _around_centre(images)
    sine, cosine = _per_row(angle.sin()), _per_row(angle.cos())
    return _sampled(
        images,
        rows * cosine + columns * sine + centre[0],
        columns * cosine - rows * sine + centre[1],
    )


def _draw_color(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    brightness, saturation, contrast = to_device(
        torch.rand(3, shape[0], generator=generator), device
    )
    return lambda images: color(images, brightness - 0.5, 2 * saturation, contrast + 0.5)


def _draw_shift(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    down, right = (
        to_device(torch.randint(-most, most + 1, shape[:1], generator=generator), device)
        for most in _rounded(shape, _SHIFT)
    )
    return lambda images: shift(images, down, right)


def _draw_cutout(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    size = _rounded(shape, _CUTOUT)
    # An even side has its centre between two pixels, so it has one more possible position.
    row, column = (
        to_device(torch.randint(pixels + 1 - side % 2, shape[:1], generator=generator), device)
        for pixels, side in zip(shape[2:], size, strict=True)
    )
    return lambda images: cutout(images, row, column, size)


def _draw_flip(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    flipped = to_device(torch.rand(shape[0], generator=generator) < 0.5, device)
    return lambda images: flip(images, flipped)


def _draw_scale(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    draws = to_device(torch.rand(2, shape[0], generator=generator), device)
    vertical, horizontal = 1 / _SCALE + draws * (_SCALE - 1 / _SCALE)
    return lambda images: scale(images, vertical, horizontal)


def _draw_rotate(shape: tuple[int, ...], generator: Generator, device: torch.device) -> Transform:
    draws = to_device(torch.rand(shape[0], generator=generator), device)
    angle = (2 * draws - 1) * math.radians(_DEGREES)
    return lambda images: rotate(images, angle)


_OPERATIONS = (_draw_color, _draw_shift, _draw_cutout, _draw_flip, _draw_scale, _draw_rotate)


def _rounded(shape: tuple[int, ...], ratio: float) -> tuple[int, int]:
    """``ratio`` times the height and the width, rounded to whole pixels; halves are rounded up."""
    return int(shape[2] * ratio + 0.5), int(shape[3] * ratio + 0.5)


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _per_row(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)


def _pixels(images: Tensor) -> tuple[Tensor, Tensor]:
    """The row numbers [1, height, 1] and the column numbers [1, 1, width] of the pixels."""
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device)
    return rows.view(1, -1, 1), torch.arange(width, device=images.device).view(1, 1, -1)


def _around_centre(images: Tensor) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The pixels' row and column numbers relative to the image's centre, and this centre."""
    height, width = images.shape[2:]
    centre = (height - 1) / 2, (width - 1) / 2
    rows, columns = _pixels(images)
    return rows - centre[0], columns - centre[1], centre


def _sampled(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sample each image at fractional positions that broadcast to [n, height, width].

    The values between pixels are interpolated bilinearly, and the values outside the image are
    zero. This function replaces ``grid_sample``, whose backward pass on a GPU is not deterministic.
    """
    rows, columns = rows.to(images.dtype), columns.to(images.dtype)
    top, left = rows.floor(), columns.floor()
    result = torch.zeros_like(images)
    for row, weight in ((top, top + 1 - rows), (top + 1, rows - top)):
        for column, share in ((left, left + 1 - columns), (left + 1, columns - left)):
            result = result + _at(images, row.long(), column.long()) * (weight * share)[:, None]
    return result


def _at(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of each image at whole-number positions that broadcast to [n, height, width].

    Positions outside the image have the value zero.
    """
    count, channels, height, width = images.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixel = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = pixel.view(count, 1, -1).expand(count, channels, -1)
    values = images.flatten(2).gather(2, index).view(count, channels, *pixel.shape[1:])
    return values * inside[:, None]
