"""Backdoor attack: in a view of a client's data, some images get a trigger and its target class."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.randomness import numpy_generator
from fedexp.core.transfer import to_device
from fedexp.data.federated import ClientData
from fedexp.data.samples import Samples
from fedexp.faults.trigger import Trigger
from fedexp.rounding import rounded_down


class Backdoor:
    """Gives clients poisoned data (BadNets, Gu et al., 2017).

    A poisoned image has the trigger and its target class. The poisoned images of a client are drawn
    without replacement from all its images; they are the same in all rounds. The patch is added
    after augmentation, so that training and test images have it in the same place.

    Args:
        trigger: the patch and its target class.
        share: the share of a client's images that is poisoned. The number of poisoned images is
            rounded down.
    """

    def __init__(self, trigger: Trigger, share: float) -> None:
        self.trigger, self.share = trigger, share
        self._train: Samples | None = None
        self._pixel: Tensor

    def __call__(self, data: ClientData, seed: int) -> ClientData:
        """Return a view of ``data`` in which some images are poisoned. No image is copied.

        The labels and the class counts of the view are those of the poisoned data.
        """
        train = data.population.train
        if self._train is not train:
            self._train, self._pixel = train, self.trigger.pixel(train)
        count = self.poisoned_images(data.num_samples)
        generator = numpy_generator(seed, "backdoor", data.client)
        drawn = generator.choice(data.num_samples, count, replace=False)
        places = data.train_index[to_device(torch.from_numpy(drawn), data.train_index.device)]
        population = copy(data.population)
        population.train = _Poisoned(train, places, self.trigger, self._pixel)
        labels = population.train.labels[data.train_index]
        counts = labels.bincount(minlength=len(data.class_counts))
        return replace(data, class_counts=counts, population=population)

    def poisoned_images(self, images: int) -> int:
        """How many of this number of images are poisoned."""
        return rounded_down(self.share, images)


class _Poisoned(Samples):
    """Samples that have the trigger and the target class at the positions ``places``."""

    is_shared = False

    def __init__(self, samples: Samples, places: Tensor, trigger: Trigger, pixel: Tensor) -> None:
        vars(self).update(vars(samples))
        self._is_poisoned = torch.zeros_like(samples.labels, dtype=torch.bool)
        self._is_poisoned[places] = True
        self.labels = samples.labels.masked_fill(self._is_poisoned, trigger.target)
        self._trigger, self._pixel = trigger, pixel

    def gather(self, index: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> Batch:
        """The samples at ``index`` [B] as a batch. The trigger is added after ``augment``."""
        inputs, labels = super().gather(index, augment)
        poisoned = self._is_poisoned[index].view(-1, 1, 1, 1)
        return torch.where(poisoned, self._trigger.stamp(inputs, self._pixel), inputs), labels
