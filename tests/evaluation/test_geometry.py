import math

import pytest
import torch

from fedexp.engines.predictions import Predictions
from fedexp.evaluation.geometry import (
    global_angles,
    local_angles,
    mean_over_clients,
    mean_pairwise_angle,
)

# Rows at 0, 90 and 180 degrees: pairs 90, 180, 90.
FAN = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])


def test_mean_over_all_pairs() -> None:
    assert mean_pairwise_angle(FAN) == pytest.approx(120)


def test_only_kept_rows_with_a_direction_count() -> None:
    assert mean_pairwise_angle(FAN, torch.tensor([True, True, False])) == pytest.approx(90)
    with_zero = torch.cat([FAN, torch.zeros(1, 2)])
    assert mean_pairwise_angle(with_zero) == pytest.approx(120)
    assert math.isnan(mean_pairwise_angle(FAN, torch.tensor([False, True, False])))


def test_parallel_rows_are_at_zero_despite_rounding() -> None:
    assert mean_pairwise_angle(torch.full((3, 7), 0.1)) == pytest.approx(0, abs=1e-5)


def test_a_simplex_has_its_known_angle() -> None:
    simplex = torch.eye(5) - 1 / 5
    assert mean_pairwise_angle(simplex) == pytest.approx(math.degrees(math.acos(-1 / 4)), abs=1e-4)


def test_metrics_of_the_global_and_of_a_local_model() -> None:
    predictions = Predictions(torch.ones(1), 0.0, {"feature": FAN, "classifier": FAN[:, [1, 0]]})
    assert global_angles(predictions) == pytest.approx(
        {"geometry/feature_angle": 120, "geometry/classifier_angle": 120}
    )
    found = local_angles(predictions, torch.tensor([3, 0, 1]))
    # one missing class makes no pair: absent, not zero
    assert found == pytest.approx(
        {
            "geometry/feature_angle_existing": 180,
            "geometry/classifier_angle_existing": 180,
        }
    )


def test_means_are_over_the_clients_that_measured() -> None:
    assert mean_over_clients([{"a": 1.0, "b": 5.0}, {"a": 2.0}, {}]) == {"a": 1.5, "b": 5.0}
    assert mean_over_clients([]) == {}
