"""Functions that several partitions use to draw each client's share of a class."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.data.split import apportion
from fedexp.errors import InputError

Tries = Annotated[int, Field(gt=0, le=1_000_000)]
"""Largest number of draws before an error."""

Concentration = Annotated[float, Field(gt=0, le=1e100)]
"""Parameter of a symmetric Dirichlet distribution.

Near 0, one client gets almost a whole class. A large value gives even shares. The upper bound
exists because NumPy's shares are NaN at 1e306.
"""


def dirichlet_counts(
    sizes: np.ndarray, num_clients: int, beta: float, balance: bool, generator: np.random.Generator
) -> np.ndarray:
    """Spread each class over the clients in shares from the Dirichlet distribution Dir(beta).

    NumPy's Dirichlet uses stick-breaking for a small beta. The usual method, normalised gamma
    variables, would fail: all variables can underflow to zero, and the shares become 0/0.

    Args:
        sizes: [C] number of samples of each class.
        num_clients: N.
        beta: concentration.
        balance: if true, a client that already has n/N samples gets no samples of later classes.
            Shares are drawn for the other clients only. The distribution of the shares is the same
            as if they were drawn for all clients and then renormalised. Some client can always
            receive samples: until all n samples are dealt, some client has fewer than n/N.
        generator: draws the shares.

    Returns:
        [N, C] number of samples of each class for each client.
    """
    counts = np.zeros((num_clients, len(sizes)), dtype=np.int64)
    for label in np.flatnonzero(sizes):
        is_open = counts.sum(axis=1) * num_clients < sizes.sum()
        receivers = np.flatnonzero(is_open) if balance else np.arange(num_clients)
        shares = generator.dirichlet(np.full(len(receivers), beta))
        counts[receivers, label] = apportion(sizes[label], shares, generator)
    return counts


def check_min_size(min_size: int, num_samples: int, num_clients: int) -> None:
    """Raise InputError if there are too few samples for ``partition.min_size``."""
    if min_size * num_clients > num_samples:
        raise InputError(
            f"partition.min_size={min_size}: {num_samples} samples are too few "
            f"for clients.count={num_clients}"
        )


def draw_until(
    draw: Callable[[], np.ndarray],
    max_tries: int,
    min_size: int,
    min_classes: int,
    options: str,
    where: str,
) -> np.ndarray:
    """Draw until every client has enough samples and enough classes; return this draw.

    Args:
        draw: returns one draw: [N, C] number of samples of each class for each client.
        max_tries: largest number of draws.
        min_size: smallest number of samples of a client.
        min_classes: smallest number of classes of a client.
        options: the config keys of the minima, for the message ("partition.min_size=10").
        where: the config keys on which the draws depend, with values, for the message.

    Raises:
        InputError: in every draw a client has too few samples or classes. The message has the
            largest numbers of samples and classes that the smallest client had in any draw.
    """
    most_samples = most_classes = 0
    for _ in range(max_tries):
        counts = draw()
        samples, classes = counts.sum(axis=1).min(), (counts > 0).sum(axis=1).min()
        if samples >= min_size and classes >= min_classes:
            return counts
        most_samples, most_classes = max(most_samples, samples), max(most_classes, classes)
    reached = f"{most_samples} samples" + (f" and {most_classes} classes" if min_classes else "")
    raise InputError(
        f"{options}: not reached in partition.max_tries={max_tries} draws with {where}; "
        f"the smallest client had at most {reached}"
    )
