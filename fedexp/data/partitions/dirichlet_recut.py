"""FedSC's first partition: balanced Dirichlet shares, cut again into clients of equal size."""

from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from fedexp.data.partitions.shares import (
    Concentration,
    LegacySeed,
    cut,
    draw_until,
    legacy_balanced_shares,
    legacy_generator,
)


def dirichlet_recut(
    labels: np.ndarray,
    num_clients: int,
    beta: Concentration,
    seed: int,
    draw_seed: LegacySeed | None = 66,
    group: PositiveInt = 10,
    min_share: Annotated[float, Field(ge=0, lt=1)] = 0.5,
    max_tries: PositiveInt = 2000,
) -> list[np.ndarray]:
    """The partition of FedSC's released code (NID1), bit for bit.

    The shuffled samples are cut into parts for groups of clients. Within a group each class is
    spread by Dir(beta), and a client that has its fair share gets no more; this is redrawn until
    every client has ``min_share`` of a fair share. The clients' samples, class by class, are then
    put one client after the other and cut into N pieces that differ in size by at most one.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        beta: concentration, the paper's alpha.
        seed: of the run; used if ``draw_seed`` is None.
        draw_seed: of numpy's legacy generator.
        group: clients of a group; the last has what is left of N.
        min_share: share of its group's samples per client that every client must have before
            the last cut.
        max_tries: draws at most for a group.

    Raises:
        InputError: no draw gave every client enough samples, or the seed is too large.
    """
    generator = legacy_generator(seed if draw_seed is None else draw_seed)
    shuffled = generator.permutation(len(labels))
    starts = range(0, num_clients, group)
    part = int(group / num_clients * len(labels))
    parts = np.split(shuffled, [part * place for place in range(1, len(starts))])
    lists = []
    for start, members in zip(starts, parts, strict=True):
        width = min(group, num_clients - start)
        fair = len(members) / width
        min_size = int(min_share * fair)
        counts = draw_until(
            partial(_balanced_counts, np.bincount(labels[members]), width, fair, beta, generator),
            max_tries,
            min_size,
            min_classes=0,
            options=f"partition.min_share={min_share} ({min_size} samples)",
            where=f"partition.beta={beta} and a group of {width} clients",
        )
        by_class = members[np.argsort(labels[members], kind="stable")]
        owner = np.repeat(np.tile(np.arange(width), counts.shape[1]), counts.T.ravel())
        lists.append(by_class[np.argsort(owner, kind="stable")])
    return [np.sort(piece) for piece in np.array_split(np.concatenate(lists), num_clients)]


def _balanced_counts(
    sizes: np.ndarray, width: int, fair: float, beta: float, generator: np.random.RandomState
) -> np.ndarray:
    """[width, C] samples of each class; a client that has ``fair`` of them gets no more."""
    counts = np.zeros((width, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = legacy_balanced_shares(counts.sum(axis=1), fair, beta, generator)
        counts[:, label] = cut(size, shares)
    return counts
