"""The initial synthetic dataset: labels, and images that are noise or a client's own images."""

from typing import Literal

import torch
from torch import Tensor

from fedexp.contract import LocalData, Setting
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.errors import InputError

Start = Literal["images", "distinct_images", "noise"]
Augmentation = Literal["none", "dsa"]
OTHER_CLASSIFIER = (
    "regularizer: synthetic images are learned from the models that clients train; with this "
    "{other} the global model uses a different classifier"
)
OTHER_MODELS = (
    "regularizer: takes the difference of two models that a client received for steps of the "
    "global model, but this {other} may send the client other models"
)


def check_inputs(augment: Augmentation, setting: Setting) -> None:
    """Check that synthetic inputs can be learned for this experiment.

    Raises:
        InputError: the inputs are tokens, or ``augment=dsa`` and the inputs are not images.
    """
    if setting.model.vocabulary:
        raise InputError(
            "regularizer: learns synthetic inputs, but the inputs are tokens, which have no "
            "gradient; use another regularizer, or data with numeric inputs"
        )
    if augment == "dsa" and len(setting.model.input_shape) != 3:
        raise InputError(
            "regularizer.augment=dsa: needs images [channels, height, width], but inputs have "
            f"the shape {list(setting.model.input_shape)}; use augment=none"
        )


def synthetic_labels(num_classes: int, per_class: int, device: torch.device) -> Tensor:
    """The labels [C * per_class]: each of the C classes ``per_class`` times, in order."""
    return torch.arange(num_classes, device=device).repeat_interleave(per_class)


def noise(setting: Setting, per_class: int, device: torch.device, *key: int) -> Tensor:
    """Draw standard Gaussian images [C * per_class, *input_shape] from the seed and ``key``.

    C is the number of classes.
    """
    shape = (setting.num_classes * per_class, *setting.model.input_shape)
    generator = torch_generator(setting.seed, "synthetic", *key)
    return to_device(torch.randn(shape, generator=generator), device)


def client_start(
    setting: Setting,
    per_class: int,
    device: torch.device,
    data: LocalData,
    round: int,
    start: Start,
) -> Tensor:
    """A client's initial synthetic images [C * per_class, *input_shape].

    With ``start="noise"`` all images are noise. Otherwise the classes that the client holds get
    training images of the client, and the other classes get noise.
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
    """Draw random training images of a client, from one class: [count, *input_shape].

    The images are ready for the model and not augmented.

    Args:
        data: the client's data, with at least one image of the class.
        label: the class of the images.
        count: number of images.
        seed: seed of the run.
        round: number of the round. The random draw differs between rounds.
        replacement: whether to draw with replacement. If false, the images are the first ``count``
            of a random permutation of the class's images. If the class has fewer than ``count``
            images, the permutation is repeated.
    """
    positions = (data.labels == label).nonzero().flatten()
    generator = torch_generator(seed, "synthetic", round, data.client, label)
    if replacement:
        drawn = torch.randint(len(positions), (count,), generator=generator)
    else:
        order = torch.randperm(len(positions), generator=generator)
        drawn = order[torch.arange(count) % len(positions)]
    return data.inputs(positions[to_device(drawn, positions.device)])
