"""The trigger of a backdoor: a square of one value in a corner of an image."""

from typing import Annotated, Literal

import torch
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt
from torch import Tensor

from fedexp.config.build import STRICT
from fedexp.data.samples import Samples
from fedexp.errors import InputError


class Trigger(BaseModel):
    """A square patch, and the class that a backdoored model predicts for images with this patch.

    Attributes:
        size: side of the square in pixels.
        corner: the corner of the image in which the square lies.
        value: value of the square's pixels in all channels, from 0 to 1. For uint8 images
            0 and 1 stand for the pixel values 0 and 255. For float images they stand for the
            smallest and the largest value in the training split.
        target: the class that a backdoored model predicts.
    """

    model_config = STRICT

    size: PositiveInt
    corner: Literal["top_left", "top_right", "bottom_left", "bottom_right"]
    value: Annotated[float, Field(ge=0, le=1)]
    target: NonNegativeInt

    def check(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        """Check the trigger.

        Raises:
            InputError: the patch does not fit into an image, or the class does not exist.
        """
        if self.size > min(input_shape[-2:]):
            height, width = input_shape[-2:]
            raise InputError(
                f"faults.trigger.size={self.size}: is larger than the images, {height} x {width}"
            )
        if self.target >= num_classes:
            raise InputError(
                f"faults.trigger.target={self.target}: classes are 0 to {num_classes - 1}"
            )

    def pixel(self, train: Samples) -> Tensor:
        """The patch's pixel value in a model's input; ``train`` is the training split.

        The shape is [1, channels, 1, 1] for uint8 images, otherwise [1, 1, 1, 1].
        """
        if train.inputs.dtype == torch.uint8:
            return train.shift + 255 * self.value * train.scale
        low, high = train.inputs.aminmax()
        return torch.lerp(low, high, self.value).view(1, 1, 1, 1)

    def stamp(self, images: Tensor, pixel: Tensor) -> Tensor:
        """Return a copy of ``images`` [B, C, H, W], which are inputs of a model, with the patch."""
        rows, columns = self.corner.split("_")
        stamped = images.clone()
        vertical = slice(self.size) if rows == "top" else slice(-self.size, None)
        horizontal = slice(self.size) if columns == "left" else slice(-self.size, None)
        stamped[..., vertical, horizontal] = pixel
        return stamped
