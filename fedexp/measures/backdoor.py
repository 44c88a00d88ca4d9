"""The success of a backdoor: how often a trigger makes the global model predict a target class."""

from types import MappingProxyType

import torch
from pydantic import PositiveInt

from fedexp.config.compatibility.traits import Need
from fedexp.errors import InputError
from fedexp.faults.trigger import Trigger
from fedexp.measures.measure import AfterRound, Measure, Measured, Outline
from fedexp.measures.scoring.predictions import predicted


class Backdoor(Measure):
    """``backdoor/success``: the share of images with a trigger that get the attack's target class.

    The trigger, a small patch, is stamped on all test images of classes other than the target.
    Even for a model without a backdoor, the share is usually above 0: the model makes mistakes, and
    the patch hides a part of the image.

    Args:
        trigger: the attack's patch and target class, ``faults.trigger``; None if the faults have no
            trigger.
        every: rounds between measurements; the last round is always measured.
    """

    headlines = MappingProxyType({"backdoor/success": "lower"})
    needs = frozenset(
        {Need.GLOBAL_MODEL, Need.CLASS_LABELS, Need.TEST_CLASSES, Need.IMAGES, Need.ALL_CLIENTS}
    )
    reads = frozenset({"faults.trigger"})

    def __init__(self, trigger: Trigger | None, every: PositiveInt) -> None:
        self.trigger, self.every = trigger, every

    def check(self, outline: Outline) -> None:
        """Raise InputError if there is no trigger, or if it does not fit the images and classes."""
        if self.trigger is None:
            raise InputError(
                "measure.backdoor: faults=none has no trigger; use faults=byzantine "
                "faults.attack=backdoor, and faults.byzantine=0 for a model without attackers"
            )
        self.trigger.check(outline.about.input_shape, outline.about.num_classes)

    @torch.inference_mode()
    def __call__(self, after: AfterRound) -> Measured:
        """``backdoor/success``; nothing if all test samples are of the target class."""
        if self.trigger is None or not after.ranks.is_first:
            return Measured()
        data, module, hits = after.data, after.global_model(), []
        others = (data.test.labels != self.trigger.target).nonzero().flatten()
        pixel = self.trigger.pixel(data.train)
        for inputs, _ in data.test.batches(after.resources.eval_batch_size, others):
            with after.resources.fabric.autocast():
                logits = module(self.trigger.stamp(inputs, pixel))
            hits.append(predicted(logits) == self.trigger.target)
        if not hits:
            return Measured()
        return Measured({"backdoor/success": torch.cat(hits).double().mean().item()})
