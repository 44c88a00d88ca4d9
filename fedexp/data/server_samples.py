"""Copies of clients' training samples for the server, such as FLTrust's trusted root dataset."""

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
        purpose: a name for the draw, which depends on this name and on the run's seed.
        count: n, the number of samples; if there are fewer samples, all are drawn.
        balanced: whether the classes' numbers of drawn samples differ by at most one. If a class
            has too few samples, all of them are drawn, and more of the other classes.

    Returns:
        The inputs of the model [n, *input_shape], and the targets.
    """
    order = numpy_generator(data.seed, purpose).permutation(training_positions(data))
    if balanced:
        import pandas as pd  # slow to import

        labels = pd.Series(data.train.labels.cpu().numpy()[order])
        order = order[np.argsort(labels.groupby(labels).cumcount().to_numpy(), kind="stable")]
    return data.train.gather(torch.from_numpy(order[:count]).to(data.train.labels.device))


def training_positions(data: FederatedData) -> np.ndarray:
    """The positions of all clients' training samples in the training split, ascending."""
    return np.sort(torch.cat([client.train_index for client in data.clients]).cpu().numpy())
