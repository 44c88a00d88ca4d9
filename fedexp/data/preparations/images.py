"""The preparation of images: uint8 pixels, normalised by each channel's mean and deviation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedexp.data.image_decoding import Fit, fitted, opened
from fedexp.data.preparations.preparation import Preparation, as_tensor, check_shape
from fedexp.errors import InputError


@dataclass(frozen=True)
class Images(Preparation):
    """Normalises uint8 pixels x to (x / 255 - mean) / std.

    Attributes:
        size: [channels, height, width].
        mean: mean of each channel, for pixels in [0, 1].
        std: standard deviation of each channel, for pixels in [0, 1].
        fit: the rule for an image file of another size, see ``Fit``.
        short_side: with the fit ``centre``, pixels of the shorter side before the crop.
    """

    dtype = torch.uint8

    size: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Literal["same", "stretch", "centre"] = "same"
    short_side: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: [channels, height, width]."""
        return self.size

    @property
    def form(self) -> str:
        """The raw inputs in words: type and shape."""
        return f"uint8 images [n, {', '.join(map(str, self.size))}], 0 to 255"

    def read(self, raw: Any) -> Tensor:
        """Read an array of n images, or a list of images.

        The array has the shape [n, C, H, W] or [n, H, W, C], where C is the number of channels,
        or, for grey images, [n, H, W].

        An image in a list is a file's path or a Pillow image. It is resized to the model's input
        size if training resized its images; otherwise it must have this size.
        """
        if isinstance(raw, Sequence) and raw and isinstance(raw[0], str | Path | Image.Image):
            return torch.from_numpy(np.stack([self._decoded(each) for each in raw]))
        pixels = as_tensor(raw, self.form)
        if pixels.dtype != torch.uint8:
            raise InputError(f"predict: takes {self.form}; these are {pixels.dtype}")
        if self.size[0] == 1 and pixels.dim() == 3:
            pixels = pixels.unsqueeze(1)
        channels, height, width = self.size
        if pixels.shape[1:] == (height, width, channels) and pixels.shape[1:] != self.size:
            pixels = pixels.movedim(-1, 1)
        return check_shape(pixels, self.size, self.form)

    def prepare(self, raw: Tensor) -> Tensor:
        """Normalise raw pixels; return float32 images [n, C, H, W]."""
        scale, shift = pixel_constants(self.mean, self.std)
        return torch.addcmul(shift.to(raw.device), raw.float(), scale.to(raw.device))

    def _decoded(self, image: str | Path | Image.Image) -> np.ndarray:
        if isinstance(image, Image.Image):
            return self._fitted(image, "predict")
        with opened(Path(image).expanduser()) as found:
            return self._fitted(found, image)

    def _fitted(self, image: Image.Image, name: object) -> np.ndarray:
        _, height, width = self.size
        if self.fit == "same" and image.size != (width, height):
            raise InputError(
                f"{name}: is {image.width}x{image.height}; resize it to {width}x{height}, the size "
                "of all images in training, where none was resized"
            )
        return fitted(image, self.size, Fit(self.fit, self.short_side), name)


def pixel_constants(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """(scale, shift) of each channel: a pixel x becomes x * scale + shift = (x / 255 - mean) / std.

    Both have the shape [1, C, 1, 1] for C channels.
    """
    deviations = torch.tensor(std, dtype=torch.float32)
    scale = 1 / (255 * deviations)
    shift = -torch.tensor(mean, dtype=torch.float32) / deviations
    return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)
