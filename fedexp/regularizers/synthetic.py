"""The synthetic dataset before it is learnt: labels, noise, images of a client."""

from typing import Literal

import torch
from torch import Tensor

from fedexp.core.client_protocol import LocalData
from fedexp.core.part import Setting
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError

Start = Literal["images", "distinct_images", "noise"]
Augmentation = Literal["none", "dsa"]
OTHER_CLASSIFIER = (
    "regularizer: synthetic images are learnt from the models that clients train; with this "
    "{socket} the global model has another classifier"
)


def check_inputs(augment: Augmentation, setting: Setting) -> None:
    """Raises InputError if inputs cannot be learnt, or are not what ``augment`` works on."""
    if setting.vocabulary:
        raise InputError(
            "regularizer: learns synthetic inputs, which tokens cannot be; use another "
            "regularizer, or data whose inputs are numbers"
        )
    if augment == "dsa" and len(setting.input_shape) != 3:
        raise InputError(
            "regularizer.augment=dsa: needs images [channels, height, width], but inputs have "
            f"the shape {list(setting.input_shape)}; use augment=none"
        )


def synthetic_labels(num_classes: int, per_class: int, device: torch.device) -> Tensor:
    """[C * per_class]: ``per_class`` times each class, in order."""
    return torch.arange(num_classes, device=device).repeat_interleave(per_class)


def noise(setting: Setting, per_class: int, device: torch.device, *key: int) -> Tensor:
    """Standard Gaussian images [C * per_class, *input_shape]; ``key`` names the draw."""
    shape = (setting.num_classes * per_class, *setting.input_shape)
    generator = torch_generator(setting.seed, "synthetic", *key)
    return torch.randn(shape, generator=generator).to(device)


def client_start(
    setting: Setting,
    per_class: int,
    device: torch.device,
    data: LocalData,
    round: int,
    start: Start,
) -> Tensor:
    """What a client starts from, [C * per_class, *input_shape].

    Its own images of the classes that it holds, and noise for the others; or noise only.
    """
    images = noise(setting, per_class, device, round, data.client)
    if start == "noise":
        return images
    for label in data.class_counts.nonzero().flatten().tolist():
        rows = slice(label * per_class, (label + 1) * per_class)
        images[rows] = real_images(
            data, label, per_class, setting.seed, round, replacement=start == "images"
        )
    return images


def real_images(
    data: LocalData, label: int, count: int, seed: int, round: int, replacement: bool = False
) -> Tensor:
    """``count`` random images of one class that the client holds, [count, *input_shape].

    As the model sees them, without augmentation.

    Args:
        data: the client's data, with at least one image of the class.
        label: the class.
        count: how many.
        seed: of the run.
        round: the round, part of the key of the draw.
        replacement: draw each independently of the others; else a permutation of all images of the
            class, repeated where there are fewer than ``count``.
    """
    positions = (data.labels == label).nonzero().flatten()
    generator = torch_generator(seed, "synthetic", round, data.client, label)
    if replacement:
        drawn = torch.randint(len(positions), (count,), generator=generator)
    else:
        order = torch.randperm(len(positions), generator=generator)
        drawn = order[torch.arange(count) % len(positions)]
    return data.inputs(positions[drawn.to(positions.device)])
