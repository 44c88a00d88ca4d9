import pytest
from support.federations import federate

COHORT = ["clients.count=8", "clients.per_round=3", "rounds=2", "local.epochs=1"]
COHORT += ["data.subset=300", "partition.beta=0.5", "measure.personal.every=1"]
COHORT += ["measure.personal.of=cohort", "model.hidden=[8]"]


@pytest.mark.parametrize(
    "kept", [["features", "features.clients=[0]"], ["fairness", "fairness.of=all"]], ids=str
)
def test_another_measure_that_keeps_all_models_does_not_change_the_mean(kept: list[str]) -> None:
    name, setting = kept
    alone = federate(*COHORT)
    beside = federate(*COHORT, f"+measure={name}", f"measure.{setting}")
    for round in (1, 2):
        found, expected = (each.run_round(round).metrics for each in (beside, alone))
        assert len(beside.store.clients_with_model) >= len(alone.store.clients_with_model) == 3
        for metric in ("personal/accuracy_local", "personal/std"):
            assert found[metric] == expected[metric]
    assert len(beside.store.clients_with_model) > 3


def test_an_estimate_in_a_population_whose_class_counts_are_not_all_known() -> None:
    federation = federate(
        *["data=synthetic", "clients.count=300", "data.test_clients=20", "clients.per_round=8"],
        *["rounds=1", "local.epochs=10", "measure.personal.samples=60"],
    )
    metrics = federation.run_round(1).metrics
    assert 0 < metrics["personal/standard_error_local"] < 0.2
