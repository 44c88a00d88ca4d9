"""Augment a whole batch of images at once, with separate random draws for each image."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.core.transfer import to_device

Augmentation = Callable[[Tensor, Generator], Tensor]

MAX_DEGREES = 15
"""Largest rotation of ``crop_flip_rotate`` in either direction."""


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror each of ``images`` [B, C, H, W] left to right with probability 1/2."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return torch.where(to_device(mirrored, images.device), images.flip(-1), images)


def crop(
    images: Tensor, generator: Generator, padding: int = 4, fill: Tensor | None = None
) -> Tensor:
    """Pad each of ``images`` [B, C, H, W] and crop H x W at a random place.

    Args:
        images: the batch.
        generator: draws the places.
        padding: pixels of padding on each side; an image moves by at most this many pixels.
        fill: [C] padding value of each channel, or [1] one value for all channels. None pads with
            0: black in uint8 images, the mean in normalised inputs.
    """
    batch, _, height, width = images.shape
    padded = F.pad(images, [padding] * 4)
    if fill is not None:
        padded = fill.to(images).view(1, -1, 1, 1).expand_as(padded).clone()
        padded[..., padding : padding + height, padding : padding + width] = images
    offset = torch.randint(0, 2 * padding + 1, (2, batch, 1), generator=generator)
    rows = to_device(offset[0] + torch.arange(height), images.device)
    columns = to_device(offset[1] + torch.arange(width), images.device)
    sample = torch.arange(batch, device=images.device)
    # PyTorch's indexing moves the sliced axis (the channels) to the end: [B, H, W, C].
    shifted = padded[sample[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return shifted.permute(0, 3, 1, 2)


def rotate(images: Tensor, generator: Generator, degrees: float = MAX_DEGREES) -> Tensor:
    """Rotate each of ``images`` [B, C, H, W] about its centre by a random angle.

    The angle is uniform between ``-degrees`` and ``degrees``. Each pixel takes the value of the
    nearest pixel of the original image. Pixels that come from outside the original are 0, as
    the padding of ``crop``.
    """
    batch, channels, height, width = images.shape
    angle = (2 * torch.rand(batch, 1, 1, generator=generator) - 1) * math.radians(degrees)
    cosine, sine = (to_device(each, images.device) for each in (angle.cos(), angle.sin()))
    y = torch.arange(height, device=images.device).view(-1, 1) - (height - 1) / 2
    x = torch.arange(width, device=images.device).view(1, -1) - (width - 1) / 2
    row = (cosine * y - sine * x + (height - 1) / 2).round().long()
    column = (sine * y + cosine * x + (width - 1) / 2).round().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    turned = images.flatten(2).gather(2, source.view(batch, 1, -1).expand(-1, channels, -1))
    return torch.where(inside.unsqueeze(1), turned.view_as(images), 0)


def crop_flip(images: Tensor, generator: Generator, fill: Tensor | None = None) -> Tensor:
    """Random crop with padding 4, then random horizontal flip, as is usual for CIFAR."""
    return flip(crop(images, generator, fill=fill), generator)


def half_crop_flip(images: Tensor, generator: Generator, fill: Tensor) -> Tensor:
    """Random horizontal flip, then a random crop with probability 1/2 (FedPTR)."""
    flipped = flip(images, generator)
    cropped = crop(flipped, generator, fill=fill)
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return torch.where(to_device(chosen, images.device), cropped, flipped)


def crop_flip_rotate(images: Tensor, generator: Generator) -> Tensor:
    """Random crop with padding 4, flip, and rotation by up to 15 degrees (FedGELA, CIFAR-100)."""
    return rotate(crop_flip(images, generator), generator)


def augmentations(fill: Tensor) -> dict[str, Augmentation | None]:
    """Every augmentation by its name; None for ``none``.

    ``crop_flip_mean`` and ``half_crop_flip`` pad with ``fill`` [C], the mean of each channel on the
    scale of the images.
    """
    return {
        "none": None,
        "flip": flip,
        "crop_flip": crop_flip,
        "crop_flip_mean": partial(crop_flip, fill=fill),
        "half_crop_flip": partial(half_crop_flip, fill=fill),
        "crop_flip_rotate": crop_flip_rotate,
    }
