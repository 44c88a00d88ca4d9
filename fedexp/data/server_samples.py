"""Samples that a server itself holds, such as the trusted root dataset of a robust aggregator."""

import numpy as np
import torch

from fedexp.core.client_protocol import Batch
from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import FederatedData


def draw_samples(data: FederatedData, purpose: str, count: int, balanced: bool) -> Batch:
    """Draw training samples of all clients, without replacement and without augmentation.

    The drawn samples also remain in the clients' data.

    Args:
        data: the population's data.
        purpose: a name; the draw depends on it and on the run's seed.
        count: n, the number of samples; all samples if there are fewer.
        balanced: whether to draw equally many samples of each class, or one more. Of a class with
            too few samples, all are drawn.

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
    """[n] for each label, the number of equal labels before it."""
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    places = np.empty_like(labels)
    places[by_class] = np.arange(len(labels)) - starts[labels[by_class]]
    return places
