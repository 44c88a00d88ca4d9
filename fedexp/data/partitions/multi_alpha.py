"""HiCS-FL's partition: blocks of clients of different heterogeneity."""

from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedexp.config.schema import ShareBelowOne
from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import Concentration, Tries, dirichlet_counts, draw_until
from fedexp.data.split import deal, share
from fedexp.errors import InputError
from fedexp.rounding import rounded_down


def multi_alpha(
    labels: np.ndarray,
    num_clients: int,
    alphas: Annotated[list[Concentration], Field(min_length=1)],
    seed: int,
    parts: Literal["random", "class_balanced"] = "random",
    balance: bool = False,
    min_share: ShareBelowOne = 0.0,
    max_tries: Tries = 1000,
) -> list[np.ndarray]:
    """Spread the samples over blocks of clients with different degrees of heterogeneity (HiCS-FL).

    The samples are cut into equal parts, one for each alpha. Part i goes to the i-th block of
    consecutive clients: each class of the part is spread over the block's clients in shares drawn
    from Dir(alpha_i). Block sizes differ by at most one client. The published rule is
    ``parts="class_balanced"``, ``balance=True``, ``min_share=0.2``.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        alphas: Dirichlet concentration of each block.
        seed: seed of the parts, the shares and the choice of samples.
        parts: how to cut the samples. With ``random`` the parts' sizes differ by at most one
            sample. With ``class_balanced`` the parts' numbers of samples of each class differ by at
            most one.
        balance: if true, a client that already has an equal share of its part gets no samples of
            later classes.
        min_share: draw a block again until each of its clients has this fraction of an equal share.
        max_tries: largest number of draws of a block.

    Raises:
        InputError: there are fewer clients than alphas, or no draw reached ``min_share``.
    """
    if num_clients < len(alphas):
        raise InputError(
            f"partition.alphas={alphas}: should have at most clients.count={num_clients} values, "
            f"so that each has a client"
        )
    generator = numpy_generator(seed, "partition")
    if parts == "random":
        cut = np.array_split(generator.permutation(len(labels)), len(alphas))
    else:
        cut = share(labels, np.ones((len(alphas), labels.max() + 1)), generator)
    blocks = np.array_split(np.arange(num_clients), len(alphas))
    clients = []
    for alpha, part, block in zip(alphas, cut, blocks, strict=True):
        sizes = np.bincount(labels[part])
        min_size = rounded_down(min_share / len(block), len(part))
        counts = draw_until(
            partial(dirichlet_counts, sizes, len(block), alpha, balance, generator),
            max_tries,
            min_size,
            min_classes=0,
            options=f"partition.min_share={min_share} ({min_size} samples)",
            where=f"alpha={alpha} of partition.alphas and a block of {len(block)} clients",
        )
        clients += [np.sort(part[index]) for index in deal(labels[part], counts, generator)]
    return clients
