import pytest
import torch
from support.federations import federate


def test_accuracies_of_a_round_by_a_loop_over_clients() -> None:
    federation = federate(
        *["clients.count=4", "clients.per_round=4", "data.subset=150", "local.epochs=3"],
        *["rounds=1", "head=cosine", "model.feature_dim=6", "partition.beta=0.3"],
    )
    metrics = federation.run_round(1).metrics
    data, module = federation.data, federation.global_model(1)
    ((inputs, labels),) = data.test.batches(len(data.test))
    accuracies = []
    for client in range(4):
        module.load(federation.store.model(client))
        with torch.no_grad():
            accuracies.append((module(inputs).argmax(dim=1) == labels).float().mean().item())
    assert metrics["personal/accuracy_whole"] == pytest.approx(sum(accuracies) / 4)


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
