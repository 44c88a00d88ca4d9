import math
from itertools import combinations

import pytest
import torch
from support.federations import federate
from torch import Tensor

from fedexp.measures.angles import (
    global_angles,
    local_angles,
    mean_angles_within,
    mean_over_clients,
    mean_pairwise_angle,
)
from fedexp.measures.scoring.predictions import Predictions
from fedexp.measures.scoring.scoring import Scoring

# Rows at 0, 90 and 180 degrees: pairs 90, 180, 90.
FAN = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])


def test_mean_over_all_pairs() -> None:
    assert mean_pairwise_angle(FAN) == pytest.approx(120)


def test_only_rows_with_a_direction_count() -> None:
    with_zero = torch.cat([FAN, torch.zeros(1, 2)])
    assert mean_pairwise_angle(with_zero) == pytest.approx(120)
    assert math.isnan(mean_pairwise_angle(FAN[:1]))


def test_parallel_rows_are_at_zero_despite_rounding() -> None:
    assert mean_pairwise_angle(torch.full((3, 7), 0.1)) == pytest.approx(0, abs=1e-5)


def test_a_simplex_has_its_known_angle() -> None:
    simplex = torch.eye(5) - 1 / 5
    assert mean_pairwise_angle(simplex) == pytest.approx(math.degrees(math.acos(-1 / 4)), abs=1e-4)


def test_angles_within_many_sets_of_classes() -> None:
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 5, generator=draw)
    vectors[3] = 0
    members = torch.rand(40, 12, generator=draw) < 0.3
    members[0], members[1] = False, torch.arange(12) < 1
    expected = [mean_pairwise_angle(vectors[keep]) for keep in members]
    assert mean_angles_within(vectors, members).tolist() == pytest.approx(expected, nan_ok=True)
    assert math.isnan(expected[0])
    assert math.isnan(expected[1])
    others = torch.randn(12, 5, generator=draw)
    found = mean_angles_within(torch.stack([vectors, others]), torch.stack([members, ~members]))
    assert found[0].tolist() == pytest.approx(expected, nan_ok=True)
    assert found[1].tolist() == pytest.approx(
        [mean_pairwise_angle(others[~keep]) for keep in members], nan_ok=True
    )


def test_angles_of_the_global_model_by_client() -> None:
    vectors = torch.cat([FAN, torch.tensor([[0.0, -2.0]])])  # at 0, 90, 180 and 270 degrees
    predictions = Predictions(torch.ones(1), 0.0, {"classifier": vectors})
    counts = torch.tensor([[5, 0, 2, 0], [9, 9, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0]])
    assert global_angles(predictions, counts) == pytest.approx(
        {
            "geometry/classifier_angle": (90 * 4 + 180 * 2) / 6,
            # client 0 holds 0 and 180, client 1 holds 0 and 90, client 2 a single class
            "geometry/classifier_angle_global_existing": (180 + 90) / 2,
            # they lack {90, 270}, {180, 270} and {90, 180, 270}; the last one has no data
            "geometry/classifier_angle_global_missing": (180 + 90 + 120) / 3,
        }
    )


def test_metrics_of_the_global_and_of_a_local_model() -> None:
    predictions = Predictions(torch.ones(1), 0.0, {"feature": FAN, "classifier": FAN[:, [1, 0]]})
    one_class_each = torch.eye(3, dtype=torch.int64)[:1]
    assert global_angles(predictions, one_class_each) == pytest.approx(
        {
            "geometry/feature_angle": 120,
            "geometry/feature_angle_global_missing": 90,
            "geometry/classifier_angle": 120,
            "geometry/classifier_angle_global_missing": 90,
        }
    )
    counts = torch.tensor([[3, 0, 1], [1, 1, 1]])
    # one missing class makes no pair: absent, not zero
    assert local_angles([predictions] * 2, counts) == [
        pytest.approx(
            {"geometry/feature_angle_existing": 180, "geometry/classifier_angle_existing": 180}
        ),
        pytest.approx(
            {"geometry/feature_angle_existing": 120, "geometry/classifier_angle_existing": 120}
        ),
    ]


def test_means_are_over_the_clients_that_measured() -> None:
    assert mean_over_clients([{"a": 1.0, "b": 5.0}, {"a": 2.0}, {}]) == {"a": 1.5, "b": 5.0}
    assert mean_over_clients([]) == {}


TINY = ["clients.count=3", "clients.per_round=1", "local.epochs=1", "data.subset=60"]


@pytest.mark.parametrize("head", ["etf", "cosine", "prototype", "linear"])
def test_class_means_of_what_the_head_sees(head: str) -> None:
    federation = federate(*TINY, f"head={head}", "model.feature_dim=16")
    federation.run_round(1)
    message = federation.server.broadcast(1)
    found = Scoring(federation.engine).score_global(message)
    assert found is not None
    measured = {"feature"} if head == "linear" else {"feature", "head_feature"}
    assert found.class_vectors.keys() & {"feature", "head_feature"} == measured

    resources = federation.engine.resources
    test = federation.data.test
    module = resources.load_global(message).eval()
    with torch.no_grad():
        ((inputs, labels),) = test.batches(len(test))
        z = module.backbone(inputs)
    kinds = {"feature": z, "head_feature": z / z.norm(dim=1, keepdim=True)}
    for kind in measured:
        means = torch.stack([kinds[kind][labels == c].mean(dim=0) for c in range(10)])
        assert torch.allclose(found.class_vectors[kind], means, atol=1e-5), kind


def test_a_round_has_the_angles_of_every_kind() -> None:
    metrics = federate(*TINY, "head=cosine", "model.feature_dim=16").run_round(1).metrics
    for kind in ("feature", "head_feature", "classifier"):
        for suffix in ("", "_global_missing"):
            assert 0 < metrics[f"geometry/{kind}_angle{suffix}"] < 180


def angle(vectors: list[list[float]]) -> float | None:
    """Mean angle in degrees over pairs; None without a pair."""
    found = []
    for a, b in combinations(vectors, 2):
        cosine = sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))
        found.append(math.degrees(math.acos(max(-1, min(1, cosine)))))
    return sum(found) / len(found) if found else None


def test_the_angles_of_a_round_by_loops_over_clients() -> None:
    federation = federate(
        *["clients.count=4", "clients.per_round=4", "data.subset=150", "local.epochs=3"],
        *["rounds=1", "head=cosine", "model.feature_dim=6", "partition.beta=0.3"],
    )
    metrics = federation.run_round(1).metrics
    data, module = federation.data, federation.global_model(1)
    ((inputs, labels),) = data.test.batches(len(data.test))
    with torch.no_grad():
        z = module.backbone(inputs)
        unit = torch.stack([row / math.hypot(*row.tolist()) for row in z])
    kinds: dict[str, Tensor] = {
        "feature": torch.stack([z[labels == c].mean(dim=0) for c in range(10)]),
        "head_feature": torch.stack([unit[labels == c].mean(dim=0) for c in range(10)]),
        "classifier": module.weights["head.weight"],
    }
    for kind, vectors in kinds.items():
        for name, wanted in (("existing", True), ("missing", False)):
            means = [
                angle([vectors[c].tolist() for c in range(10) if (counts[c] > 0) == wanted])
                for counts in data.class_counts.tolist()
            ]
            measured = [each for each in means if each is not None]
            expected = sum(measured) / len(measured)
            found = metrics[f"geometry/{kind}_angle_global_{name}"]
            assert found == pytest.approx(expected, abs=1e-2), (kind, name)
