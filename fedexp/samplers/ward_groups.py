"""Ward's method for a population with many equal clients; one point represents all of them."""

import numpy as np
from scipy.cluster.hierarchy import DisjointSet, fcluster
from scipy.spatial.distance import cdist

from fedexp.samplers.clusters import LinkageOn


def ward_beside_equals(
    distances: np.ndarray,
    to_equals: np.ndarray,
    apart: float,
    number: int,
    clusters: int,
    linkage_on: LinkageOn,
) -> np.ndarray:
    """Cluster m points and n equal points as ``ward`` does, without a matrix [m + n, m + n].

    Any two equal points have the distance ``apart``. Each of the m other points has one distance
    D >= ``apart`` to all equal points. By the Lance-Williams formula, a cluster with distance
    >= ``apart`` from two equal points also has distance >= ``apart`` from the union of the two. So
    Ward's tree joins all equal points before an equal point joins one of the m other points. This
    function puts the equal points into the tree as one cluster of n points. The square of the Ward
    distance between this cluster and one of the m other points is

        2 n / (n + 1) * (D^2 - apart^2 (n - 1) / (2 n)).

    Args:
        distances: [m, m] distances among the m points; symmetric, zero on the diagonal.
        to_equals: D [m], the distance of each of the m points from the equal points.
        apart: distance between two equal points.
        number: n, the number of equal points, at least 1.
        clusters: the largest number of clusters.
        linkage_on: the input of Ward's method, see ``ward``. With ``rows`` the matrix of distances
            has n equal columns for the equal points.

    Returns:
        [m + 1] int64 numbers of clusters: 0, 1, ... The last entry is the cluster of all equal
        points. If a cut into ``clusters`` clusters would divide the equal points, there are fewer
        clusters. (``ward`` would divide the equal points arbitrarily: they all join at the same
        height, so rounding decides.)
    """
    if not len(to_equals):
        return np.zeros(1, dtype=np.int64)
    squares, joins_at = _squares(distances, to_equals, apart, number, linkage_on)
    tree = group_tree(squares, np.append(np.ones(len(to_equals)), number))
    labels = np.arange(1, len(squares) + 1)
    if number > 1:  # make all joins that come before the join of the equal points
        labels = fcluster(tree, joins_at * (1 + 1e-9), "distance")
    if labels.max() > clusters:
        labels = fcluster(tree, clusters, "maxclust")
    found: np.ndarray = labels.astype(np.int64) - 1
    return found


def _squares(
    distances: np.ndarray, to_equals: np.ndarray, apart: float, number: int, linkage_on: LinkageOn
) -> tuple[np.ndarray, float]:
    """The squared Ward distances, and the height in the tree at which the equal points join.

    ``ward_beside_equals`` explains the arguments. The squares are a matrix [m + 1, m + 1] for the m
    other points and the cluster of the equal points, which has the last row and column.
    """
    if linkage_on == "rows":
        columns = np.column_stack([distances, np.sqrt(number) * to_equals])
        squares = cdist(columns, columns, "sqeuclidean")
        step = to_equals - apart * (number - 1) / number
        centre = np.square(distances - to_equals).sum(axis=1) + number * step**2
        joins_at = np.sqrt(2) * apart
    else:
        squares = np.square(distances)
        centre = to_equals**2 - apart**2 * (number - 1) / (2 * number)
        joins_at = apart
    whole = np.zeros((len(squares) + 1, len(squares) + 1))
    whole[:-1, :-1] = squares
    whole[-1, :-1] = whole[:-1, -1] = 2 * number / (number + 1) * centre
    return whole, joins_at


def group_tree(squares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Join n given clusters by Ward's method; the result is scipy's [n - 1, 4] linkage matrix.

    The algorithm is the nearest-neighbour chain (Murtagh, The Computer Journal 1983) with the
    Lance-Williams formula. It takes O(n^2) time. The last column of the linkage matrix is the
    number of given clusters in a joined cluster; in scipy it is the number of points.

    Args:
        squares: [n, n] the squares of Ward's distances between the given clusters. This function
            overwrites this matrix.
        sizes: [n] number of points in each given cluster.
    """
    np.fill_diagonal(squares, np.inf)
    sizes, left = sizes.astype(np.float64), np.ones(len(sizes), dtype=bool)
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    for _ in range(len(sizes) - 1):
        if not chain:
            chain.append(int(left.argmax()))
        while True:
            row = squares[chain[-1]]
            nearest = int(row.argmin())
            if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
                break
            chain.append(nearest)
        gone, kept = chain.pop(), chain.pop()
        height = squares[gone, kept]
        merges.append((gone, kept, np.sqrt(height)))
        joined = (
            (sizes[gone] + sizes) * squares[gone]
            + (sizes[kept] + sizes) * squares[kept]
            - sizes * height
        ) / (sizes[gone] + sizes[kept] + sizes)
        joined[[gone, kept]], joined[~left] = np.inf, np.inf
        squares[kept], squares[:, kept] = joined, joined
        squares[gone], squares[:, gone] = np.inf, np.inf
        sizes[kept] += sizes[gone]
        left[gone] = False
    return _in_order(merges)


def _in_order(merges: list[tuple[int, int, float]]) -> np.ndarray:
    """Sort merges of clusters by height and write them as scipy's linkage matrix.

    Args:
        merges: triples: a point of the first cluster, a point of the second cluster, the height.
    """
    count = len(merges) + 1
    clusters = DisjointSet(range(count))
    number = list(range(count))  # scipy's number of a cluster, at the index of its root point
    tree = np.empty((count - 1, 4))
    for place, (one, other, height) in enumerate(sorted(merges, key=lambda merge: merge[2])):
        pair = sorted((number[clusters[one]], number[clusters[other]]))
        clusters.merge(one, other)
        tree[place] = (*pair, height, clusters.subset_size(one))
        number[clusters[one]] = count + place
    return tree
