"""Accuracy of robust aggregators when a fifth of the clients is Byzantine."""

import pytest
from support.federations import federate

ATTACKED = ["faults=byzantine", "faults.attack=sign_flip", "faults.factor=5"]
ROBUST = {
    "median": ["aggregator=median"],
    "trimmed_mean": ["aggregator=trimmed_mean", "aggregator.trim=0.3"],
    "norm_clipped": ["aggregator=norm_clipped", "aggregator.norm=0.5"],
    "krum": ["aggregator=krum", "aggregator.byzantine=0.3"],
}


def accuracy(*overrides: str) -> float:
    """Of FedAvg's global model on digits after 30 rounds, seed 0."""
    federation = federate(*overrides, "measure.personal=null", "measure.global.every=30")
    for round in range(1, 31):
        metrics = federation.run_round(round).metrics
    return metrics["global/accuracy"]


@pytest.mark.slow
def test_some_robust_aggregator_keeps_the_accuracy_that_the_average_loses() -> None:
    clean = accuracy()
    assert accuracy(*ATTACKED) < clean - 0.05
    found = {name: accuracy(*ATTACKED, *overrides) for name, overrides in ROBUST.items()}
    assert max(found.values()) >= clean - 0.05, found
