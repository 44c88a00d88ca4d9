"""The success of a backdoor: how often a trigger makes the global model predict its target."""

from types import MappingProxyType

import torch
from pydantic import PositiveInt

from fedexp.compatibility.traits import Need
from fedexp.errors import InputError
from fedexp.faults.trigger import Trigger
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured, Outline


class Backdoor(Measure):
    """``backdoor/success``: share of triggered test images that are classified as the target.

    Only test samples of other classes count. The share is above 0 even for a model without a
    backdoor, because of its mistakes and of the patch itself.

    Args:
        trigger: the attack's trigger, ``faults.trigger``; None if the faults have no trigger.
        every: rounds between measurements; the last round is always measured.
    """

    headlines = MappingProxyType({"backdoor/success": "lower"})
    needs = frozenset(
        {
            *(Need.GLOBAL_MODEL, Need.CLASS_LABELS, Need.TEST_CLASSES),
            *(Need.IMAGES, Need.ALL_CLIENTS),
        }
    )
    overlaps = True

    def __init__(self, trigger: Trigger | None, every: PositiveInt) -> None:
        self.trigger, self.every = trigger, every

    def check(self, outline: Outline) -> None:
        """Raise InputError if there is no trigger, or one that does not fit images and classes."""
        if self.trigger is None:
            raise InputError(
                "measure.backdoor: faults=none has no trigger; use faults=byzantine "
                "faults.attack=backdoor, and faults.byzantine=0 for a model without attackers"
            )
        self.trigger.check(outline.about.input_shape, outline.about.num_classes)

    @torch.inference_mode()
    def __call__(self, after: AfterRound) -> Measured:
        """The share; empty if all test samples are of the target class."""
        if self.trigger is None or not after.ranks.is_first:
            return Measured()
        data, module, hits = after.data, after.global_model(), []
        others = (data.test.labels != self.trigger.target).nonzero().flatten()
        pixel = self.trigger.pixel(data.train)
        for inputs, _ in data.test.batches(after.resources.eval_batch_size, others):
            with after.resources.fabric.autocast():
                logits = module(self.trigger.stamp(inputs, pixel))
            hits.append(logits.argmax(dim=1) == self.trigger.target)
        if not hits:
            return Measured()
        return Measured({"backdoor/success": torch.cat(hits).double().mean().item()})
