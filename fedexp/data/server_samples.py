"""Samples that a server holds itself, such as a clean root dataset."""

import numpy as np
import torch

from fedexp.core.client_protocol import Batch
from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import FederatedData


def draw_samples(data: FederatedData, purpose: str, count: int, balanced: bool) -> Batch:
    """Draw training samples of all clients, without replacement and without augmentation.

    They stay with their clients, too.

    Args:
        data: the population's data.
        purpose: key of the draw, together with the seed.
        count: n, their number; all samples if there are fewer.
        balanced: whether every class has the same number, up to one, as long as it has so many.

    Returns:
        Inputs [n, *input_shape] ready for the model, and targets.
    """
    held = np.sort(torch.cat([client.train_index for client in data.clients]).cpu().numpy())
    order = numpy_generator(data.seed, purpose).permutation(held)
    if balanced:
        labels = data.train.labels.cpu().numpy()[order]
        order = order[np.argsort(_places_in_class(labels), kind="stable")]
    return data.train.gather(torch.from_numpy(order[:count]).to(data.train.labels.device))


def _places_in_class(labels: np.ndarray) -> np.ndarray:
    """[n] how many earlier labels are equal."""
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    places = np.empty_like(labels)
    places[by_class] = np.arange(len(labels)) - starts[labels[by_class]]
    return places
