"""A client's own validation samples: a share of its training samples, the same in all rounds."""

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import OVERLAPPING_SAMPLES
from fedexp.core.client_protocol import Client
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.rounding import rounded_down

MAY_KNOW_VALIDATION = {
    OVERLAPPING_SAMPLES: "this method compares models on samples that each client draws from its "
    "own, and in these data they share content with its training samples: a model that knows this "
    "by heart looks better than it is"
}
"""``discourages`` of parts that use ``own_validation``."""


def own_validation(client: Client, seed: int, share: float) -> tuple[Tensor, Tensor]:
    """The positions of a client's validation samples, and those of its other samples.

    Args:
        client: the client, whose data are all its samples.
        seed: the run's seed.
        share: the share of the samples that are for validation.
    """
    total = client.data.num_samples
    count = validation_samples(total, share)
    draws = torch_generator(seed, "own validation", client.data.client)
    order = to_device(torch.randperm(total, generator=draws), client.device)
    return order[:count], order[count:]


def validation_samples(total: int, share: float) -> int:
    """The number of validation samples of a client that has ``total`` samples.

    It is rounded down, but is at least one if the client has two samples; else it is zero.
    """
    return max(min(1, total - 1), rounded_down(share, total))
