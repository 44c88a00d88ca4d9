import math

import pytest
import torch
from torch import Tensor

from fedexp.core.prototypes import (
    Metric,
    class_prototypes,
    consistent_prototypes,
    discrepancy_weights,
    relational_prototypes,
)

METRICS: list[Metric] = ["angle", "cosine", "l1", "l2", "kl"]
Vector = list[float]

# Four clients, five classes: class 2 is held by one client, class 4 by nobody, class 0 by all.
COUNTS = torch.tensor([[3, 0, 5, 1, 0], [2, 4, 0, 0, 0], [9, 1, 0, 2, 0], [1, 6, 0, 3, 0]])


def random_prototypes() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, 6, dtype=torch.float64, generator=draw)


def one_class(*vectors: Vector) -> tuple[Tensor, Tensor]:
    """Prototypes [K, 1, d] of one class that every client holds, and counts."""
    prototypes = torch.tensor(vectors, dtype=torch.float64).unsqueeze(1)
    return prototypes, torch.ones(len(vectors), 1, dtype=torch.int64)


def cosine(a: Vector, b: Vector) -> float:
    norms = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else 0.0


def mean(vectors: list[Vector]) -> Vector:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def softmax(vector: Vector) -> Vector:
    powers = [math.exp(x) for x in vector]
    return [power / sum(powers) for power in powers]


def slow_distance(a: Vector, b: Vector, center: Vector, metric: Metric) -> float:
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return {
        "angle": abs(cosine(a, center) - cosine(b, center)),
        "cosine": 1 - cosine(a, b),
        "l1": sum(map(abs, gaps)),
        "l2": math.hypot(*gaps),
        "kl": sum(p * math.log(p / q) for p, q in zip(softmax(a), softmax(b), strict=True)),
    }[metric]


def slow_relational(c: Tensor, counts: Tensor, neighbors: int, metric: Metric) -> Tensor:
    relational = torch.zeros_like(c)
    for j in range(c.shape[1]):
        own = {k: c[k, j].tolist() for k in range(len(c)) if counts[k, j] > 0}
        for k, vector in own.items():
            center = mean(list(own.values()))
            others = {
                q: slow_distance(vector, other, center, metric)
                for q, other in own.items()
                if q != k
            }
            nearest = sorted(others, key=lambda q: (others[q], q))[:neighbors]
            relational[k, j] = c.new_tensor(mean([vector, *(own[q] for q in nearest)]))
    return relational


def slow_weights(counts: Tensor) -> Vector:
    rows = counts.tolist()
    sizes = [sum(row) for row in rows]
    gaps = [
        math.sqrt(0.5 * sum((n / size - 1 / len(row)) ** 2 for n in row))
        for row, size in zip(rows, sizes, strict=True)
    ]
    raw = [
        1 / (1 + math.exp(-(size / sum(sizes) - gap / sum(gaps))))
        for size, gap in zip(sizes, gaps, strict=True)
    ]
    return [value / sum(raw) for value in raw]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_prototypes_are_class_means(dtype: torch.dtype) -> None:
    features = torch.tensor([[1, 2], [5, 5], [3, 4]], dtype=dtype)
    prototypes, counts = class_prototypes(features, torch.tensor([0, 2, 0]), 4)
    assert prototypes.dtype == dtype
    assert prototypes.tolist() == [[2, 3], [0, 0], [5, 5], [0, 0]]
    assert counts.dtype == torch.int64
    assert counts.tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("neighbors", [0, 1, 2, 10])
def test_relational_prototypes_agree_with_loops(neighbors: int, metric: Metric) -> None:
    c = random_prototypes()
    relational, holds = relational_prototypes(c, COUNTS, neighbors, metric=metric)
    expected = slow_relational(c, COUNTS, neighbors, metric)
    assert relational.dtype == torch.float64
    assert torch.equal(holds, COUNTS > 0)
    torch.testing.assert_close(relational, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(relational[0, 2], c[0, 2])  # the only holder keeps its own
    assert not relational[:, 4].any()  # nobody holds it


def test_two_neighbors_by_angle_are_the_defaults() -> None:
    c = random_prototypes()
    default = relational_prototypes(c, COUNTS)[0]
    assert torch.equal(default, relational_prototypes(c, COUNTS, 2, metric="angle")[0])


# The nearest to the first vector. (1, 1) and (1, -1) make the same angle with the mean (1, 0).
MIRRORED = [[1.0, 1.0], [1.0, 0.9], [1.0, -1.0], [1.0, -0.9]]
# From (1, 0, 0, 0): (10, 0, 0, 0) has the same direction and is 9 away; the others are 3 and 4
# away by l1, 3 and sqrt(8) by l2. The mean's cosine is the same with both along the first axis.
LN3 = math.log(3)
SPREAD = [[1.0, 0, 0, 0], [10.0, 0, 0, 0], [1.0, 3, 0, 0], [1.0, 0, 2, 2]]


@pytest.mark.parametrize(
    ("vectors", "metric", "nearest"),
    [
        (MIRRORED, "angle", 2),
        (MIRRORED, "cosine", 1),
        (SPREAD, "angle", 1),
        (SPREAD, "cosine", 1),
        (SPREAD, "l1", 2),
        (SPREAD, "l2", 3),
        # softmax(0, ln 3) = (1/4, 3/4); to (3/4, 1/4), (1/50, 49/50) and (1/2, 1/2) the divergence
        # is .549, .431 and .144
        ([[0, LN3], [LN3, 0], [0, math.log(49)], [0, 0]], "kl", 3),
        ([[0, LN3], [LN3, 0], [0, math.log(49)]], "kl", 2),
        # adding the same number to all dimensions does not change a softmax
        ([[1, 2], [1, 2.5], [7, 8]], "kl", 2),
    ],
)
def test_the_nearest_client_by_each_metric(
    vectors: list[Vector], metric: Metric, nearest: int
) -> None:
    relational, _ = relational_prototypes(*one_class(*vectors), 1, metric=metric)
    assert relational[0, 0].tolist() == mean([vectors[0], vectors[nearest]])


@pytest.mark.parametrize("metric", METRICS)
def test_of_equally_near_clients_the_first_is_taken(metric: Metric) -> None:
    # (1, 0) and (0, 1) are each other's mirror image about (1, 1), which is as far from both
    relational, _ = relational_prototypes(*one_class([1, 1], [1, 0], [0, 1]), 1, metric=metric)
    assert relational[0, 0].tolist() == [1, 0.5]


def test_kl_is_taken_from_the_client_to_the_other() -> None:
    # Softmaxes (.3, .7), (.55, .45) and (.1, .9). From the first, KL is .127 and .154; to the
    # first, it is .135 and .116, which would choose the third.
    vectors = [[math.log(p), math.log(1 - p)] for p in (0.3, 0.55, 0.1)]
    relational, _ = relational_prototypes(*one_class(*vectors), 1, metric="kl")
    assert relational[0, 0].tolist() == pytest.approx(mean(vectors[:2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_keeps_the_dtype_and_copes_with_long_features(dtype: torch.dtype) -> None:
    # the softmax of the first underflows; the divergences are about 900, 0 and 300
    vectors = torch.tensor([[0.0, 900.0], [900.0, 0.0], [0.0, 900.5], [300.0, 0.0]], dtype=dtype)
    relational, _ = relational_prototypes(vectors.unsqueeze(1), torch.ones(4, 1), 1, metric="kl")
    assert relational.dtype == dtype
    assert relational[0, 0].tolist() == [0, 900.25]


def test_without_neighbors_each_client_keeps_its_own_prototype() -> None:
    # the other is as near: both make the same angle with their mean (1, 0)
    relational, _ = relational_prototypes(*one_class([1, 1], [1, -1]), 0)
    assert relational.tolist() == [[[1, 1]], [[1, -1]]]


@pytest.mark.parametrize("metric", METRICS)
def test_zero_vectors_and_a_zero_mean_have_finite_distances(metric: Metric) -> None:
    vectors = [[0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]]
    relational, _ = relational_prototypes(*one_class(*vectors), 2, metric=metric)
    assert relational.tolist() == [[mean(vectors)]] * 3


@pytest.mark.parametrize("metric", METRICS)
def test_rows_of_absent_classes_are_ignored(metric: Metric) -> None:
    c = random_prototypes()
    filled = c.masked_fill((COUNTS == 0).unsqueeze(-1), torch.nan)
    expected, _ = relational_prototypes(c, COUNTS, metric=metric)
    assert torch.equal(relational_prototypes(filled, COUNTS, metric=metric)[0], expected)


def test_discrepancy_weights_by_hand() -> None:
    # n = 4, 2; d = sqrt(1/2 (1/4 + 1/4)) = 1/2, 0: sigmoid(4/6 - 1) and sigmoid(2/6 - 0)
    weights = discrepancy_weights(torch.tensor([[4, 0], [1, 1]]))
    first = 1 / (1 + math.exp(1 / 3))
    assert weights.tolist() == pytest.approx([first, 1 - first], rel=1e-12)


def test_discrepancy_weights_agree_with_loops() -> None:
    assert discrepancy_weights(COUNTS).tolist() == pytest.approx(slow_weights(COUNTS), rel=1e-12)


def test_balanced_clients_are_weighed_by_size_alone() -> None:
    weights = discrepancy_weights(torch.tensor([[2, 2], [6, 6]]))
    raw = [1 / (1 + math.exp(-0.25)), 1 / (1 + math.exp(-0.75))]
    assert weights.tolist() == pytest.approx([value / sum(raw) for value in raw], rel=1e-12)


def test_consistent_prototypes_agree_with_loops() -> None:
    r = random_prototypes()
    consistent, holds = consistent_prototypes(r, COUNTS)
    e = slow_weights(COUNTS)
    for j in range(4):
        holders = [k for k in range(4) if COUNTS[k, j] > 0]
        expected = sum((e[k] * r[k, j] for k in holders), torch.zeros(6))
        expected = expected / sum(e[k] for k in holders)
        torch.testing.assert_close(consistent[j], expected, rtol=1e-12, atol=1e-12)
    assert not consistent[4].any()
    assert holds.tolist() == [True, True, True, True, False]
    assert consistent_prototypes(r.float(), COUNTS)[0].dtype == torch.float32
