"""Feature shift: each client sees its own transformation of the images."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.core.randomness import torch_generator
from fedexp.data.dataset import Dataset, Split

Kind = Literal["rotation", "colour", "blur"]


@dataclass(frozen=True)
class Shift:
    """One client's transformation of images with pixels in [0, 1].

    Attributes:
        degrees: angle of a counter-clockwise rotation about the centre. Pixels that come from
            outside the image are black.
        contrast: [C] for each channel, the factor of a pixel's difference from medium grey (0.5).
        brightness: [C] number that is added to each channel.
        sigma: standard deviation of a Gaussian blur, in pixels.
    """

    degrees: float
    contrast: Tensor
    brightness: Tensor
    sigma: float

    def __call__(self, images: Tensor) -> Tensor:
        """The transformed ``images`` [B, C, H, W] in [0, 1]."""
        turned = rotated(images, self.degrees) if self.degrees else images
        smooth = blurred(turned, self.sigma) if self.sigma else turned
        factor, added = (each.view(1, -1, 1, 1) for each in (self.contrast, self.brightness))
        return ((smooth - 0.5) * factor + 0.5 + added).clamp(0, 1)


def draw(
    kinds: Sequence[Kind], strength: float, shape: Sequence[int], generator: Generator
) -> Shift:
    """Draw a client's shift at random.

    Every value of the shift uses a new random number: u is uniform in [-1, 1], v in [0, 1].

    * ``rotation``: the angle is 180 * u * strength degrees;
    * ``colour``: each channel has the contrast 4^(u * strength) and the brightness
      u * strength / 2; a grey image has one channel;
    * ``blur``: sigma is v * strength / 8 times the shorter side in pixels.

    The values of one kind are the same whichever other kinds are applied.

    Args:
        kinds: the kinds of shift to apply.
        strength: from 0 (no shift) to 1.
        shape: shape of an image, [C, H, W].
        generator: the client's random generator.
    """
    channels, height, width = shape
    draws = torch.rand(2 + 2 * channels, generator=generator, dtype=torch.float64)
    turn, blur = 2 * draws[0].item() - 1, draws[1].item()
    contrast, brightness = ((2 * draws[2:] - 1) * strength * ("colour" in kinds)).chunk(2)
    return Shift(
        degrees=180 * turn * strength if "rotation" in kinds else 0.0,
        contrast=(4**contrast).float(),
        brightness=(brightness / 2).float(),
        sigma=blur * strength * min(height, width) / 8 if "blur" in kinds else 0.0,
    )


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Rotate ``images`` [B, C, H, W] (bilinear) about the centre; pad with 0."""
    angle, (height, width) = math.radians(degrees), images.shape[-2:]
    sine, cosine = math.sin(angle), math.cos(angle)
    # affine_grid has coordinates from -1 to 1 on both axes, so a wide image needs height / width.
    matrix = [[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]]
    theta = torch.tensor(matrix, dtype=images.dtype).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Blur ``images`` [B, C, H, W] by a Gaussian (``sigma`` > 0); padding repeats the borders."""
    radius, channels = math.ceil(3 * sigma), images.shape[1]
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).to(images.dtype)
    padded = F.pad(images, [radius] * 4, mode="replicate")
    columns = kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
    rows = kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    return F.conv2d(F.conv2d(padded, columns, groups=channels), rows, groups=channels)


def shifted(
    dataset: Dataset,
    clients: Sequence[np.ndarray],
    tests: Sequence[np.ndarray],
    kinds: Sequence[Kind],
    strength: float,
    seed: int,
) -> Dataset:
    """Transform each client's training and test images by that client's shift.

    Every image belongs to at most one client, so it is shifted at most once. Images that belong to
    no client do not change. For uint8 images, black is 0 and white is 255; for other images, black
    and white are the smallest and the largest training value. The dataset's mean and std do not
    change.

    Args:
        dataset: a dataset of images.
        clients: for each client, the positions of its training samples.
        tests: for each client, the positions of its test samples.
        kinds: the kinds of shift; if empty, the dataset itself is returned.
        strength: from 0 (no shift) to 1.
        seed: seed of the run. A client's random numbers depend only on this seed and on the
            client's number.
    """
    if not kinds:
        return dataset
    shape = dataset.description.input_shape
    shifts = [
        draw(kinds, strength, shape, torch_generator(seed, "feature_shift", client))
        for client in range(len(clients))
    ]
    is_bytes = dataset.train.inputs.dtype == torch.uint8
    pixels = dataset.train.inputs
    low, high = (0.0, 255.0) if is_bytes else (pixels.min().item(), pixels.max().item())

    def change(shift: Shift, inputs: Tensor) -> Tensor:
        unit = (inputs.float() - low) / (high - low or 1.0)
        values = low + shift(unit.clamp(0, 1)) * (high - low)
        return values.round().to(torch.uint8) if is_bytes else values.to(inputs.dtype)

    return replace(
        dataset,
        train=_each(dataset.train, clients, shifts, change),
        test=_each(dataset.test, tests, shifts, change),
    )


def _each(
    split: Split,
    owned: Sequence[np.ndarray],
    shifts: Sequence[Shift],
    change: Callable[[Shift, Tensor], Tensor],
) -> Split:
    """A copy of the split in which ``change`` has transformed each client's ``owned`` images."""
    inputs = split.inputs.clone()
    for index, shift in zip(owned, shifts, strict=True):
        for part in torch.split(torch.from_numpy(index), 1000) if len(index) else ():
            inputs[part] = change(shift, inputs[part])
    return replace(split, inputs=inputs)
