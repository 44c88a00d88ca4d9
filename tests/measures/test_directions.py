"""Every metric that has a better direction declares it, by name or by pattern."""

import pytest
from support.federations import compose

from fedexp.measures.panel import directions, headlines
from fedexp.reporting.marks import direction
from fedexp.runtime.plan import plan

LOWER = (
    *("global/loss", "global/loss_mean_model", "train/loss", "train/loss_std"),
    *("train/cross_entropy", "train/cross_entropy_std"),
    *("cost/upload_bytes", "cost/download_bytes", "cost/client_memory_bytes", "time/train_s"),
    *("personal/std", "personal/std_uniform", "personal/standard_error_local"),
    *("forgetting/mean", "forgetting/worst", "fairness/gini", "fairness/variance"),
    *("clients/quarantined", "server/quarantined", "privacy/epsilon"),
    *("membership/loss_auc", "membership/loss_tpr_at_1fpr", "rounds_to/0.5"),
)
HIGHER = (
    *("global/accuracy", "global/accuracy_mean_model", "personal/accuracy_local"),
    *("personal/worst_decile", "personal/worst_decile_uniform", "fairness/worst_decile"),
    "sampler/entropy_spearman",
)
NEITHER = ("geometry/classifier_angle", "sampler/clusters", "trajectory/step_size")


@pytest.fixture(scope="module")
def better() -> dict[str, str]:
    added = "+measure=[forgetting,fairness,membership,mean_model]"
    measures = plan(compose(added)).measures
    return {**directions(measures), **headlines(measures)}


@pytest.mark.parametrize(
    ("names", "expected"), [(LOWER, "lower"), (HIGHER, "higher"), (NEITHER, None)]
)
def test_the_direction_of_every_kind_of_metric(
    names: tuple[str, ...], expected: str | None, better: dict[str, str]
) -> None:
    assert {name: direction(name, better) for name in names} == dict.fromkeys(names, expected)
