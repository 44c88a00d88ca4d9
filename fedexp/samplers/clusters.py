"""Ward's hierarchical clustering, and the nearest cluster of points that were not clustered."""

from typing import Literal

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

LinkageOn = Literal["rows", "condensed"]


def ward(distances: Tensor, clusters: int, linkage_on: LinkageOn) -> Tensor:
    """Cluster N points by Ward's method (Ward, 1963) into at most ``clusters`` clusters.

    Points with distance 0 are always in the same cluster, so there can be fewer clusters.

    Args:
        distances: [N, N] symmetric, zero on the diagonal.
        clusters: the largest number of clusters; with N <= clusters each point is a cluster.
        linkage_on: ``condensed`` uses ``distances`` as the distances of the points. ``rows`` uses
            the rows of the matrix ``distances`` as the coordinates of the points. Two points are
            then close if their distances to all other points are similar.

    Returns:
        [N] int64 number of each point's cluster: 0, 1, ...
    """
    if len(distances) <= clusters:
        return torch.arange(len(distances))
    labels = fcluster(ward_tree(distances.cpu().numpy(), linkage_on), clusters, "maxclust")
    return torch.from_numpy(labels).to(torch.int64) - 1


def ward_tree(distances: np.ndarray, linkage_on: LinkageOn) -> np.ndarray:
    """Ward's tree of N points as scipy's [N - 1, 4] linkage matrix; arguments as in ``ward``."""
    rows = linkage_on == "rows"
    tree: np.ndarray = linkage(
        pdist(distances) if rows else squareform(distances, checks=False), "ward"
    )
    return tree


def nearest_clusters(distances: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Find the nearest cluster of each of n points, [n] int64.

    The nearest cluster is the cluster whose members have the smallest mean distance to the point.

    Args:
        distances: [n, L] distances of the n points to L clustered points.
        labels: [L] int64 cluster of each clustered point, 0 to M-1 for M clusters. Each cluster has
            at least one point.
        weights: [L] float64, the number of points that each clustered point represents. If None,
            each clustered point represents only itself.
    """
    members = torch.nn.functional.one_hot(labels).to(distances)
    if weights is not None:
        members *= weights[:, None]
    return (distances @ members / members.sum(dim=0)).argmin(dim=1)
