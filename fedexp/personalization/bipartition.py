"""Divides a cluster of clients in two by the cosines of their updates (CFL)."""

from typing import Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

Linkage = Literal["single", "complete"]


def bipartition(similarity: Tensor, method: Linkage) -> Tensor:
    """Divide n points in two groups (Sattler et al., TNNLS 2020, Alg. 1).

    alpha_ij is the similarity of points i and j. Single linkage makes the most similar pair of
    points from different groups as dissimilar as possible: the groups c_1 and c_2 minimise the
    maximum of alpha_ij over i in c_1 and j in c_2. Complete linkage avoids groups that consist of
    one outlier.

    Args:
        similarity: alpha [n, n] symmetric, n at least 2.
        method: linkage of the hierarchical clustering, ``single`` or ``complete``.

    Returns:
        The group of each point, [n] int64: 0 or 1. The first point is in group 0.
    """
    distances = 1 - similarity.cpu().numpy()
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), method)
    labels = torch.from_numpy(cut_tree(tree, n_clusters=2).ravel()).to(torch.int64)
    return (labels != labels[0]).to(torch.int64)


def largest_across(similarity: Tensor, groups: Tensor) -> float:
    """The largest similarity of a pair of points in different groups."""
    return similarity[groups == 0][:, groups == 1].max().item()
