from typing import cast

import pytest
import torch
from support.federations import federate

from fedexp.errors import InputError
from fedexp.measures.personal import Personal
from fedexp.measures.scoring.accuracies import personal_accuracies

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
        *["data=synthetic", "data.iid=true", "clients.count=300", "data.test_clients=20"],
        *["clients.per_round=8", "rounds=1", "local.epochs=10", "measure.personal.samples=60"],
    )
    metrics = federation.run_round(1).metrics
    assert 0 < metrics["personal/standard_error_local"] < 0.2


SYNTHETIC = ["data=synthetic", "data.size_max=80", "clients.count=20", "data.test_clients=10"]


def test_a_client_with_its_own_labelling_is_scored_on_its_own_samples() -> None:
    """Of the kinds that need other clients' samples none is left."""
    federation = federate(*SYNTHETIC, "rounds=1", "clients.per_round=20", "local.epochs=1")
    samples = cast(Personal, federation.measures["personal"]).samples
    client = federation.data.clients[0]
    is_own = torch.zeros(1, len(federation.data.test), dtype=torch.bool)
    is_own[0, client.test_index] = True
    (found,) = personal_accuracies(is_own, samples, [client])
    assert found == {"uniform": 1.0, "local": 1.0, "test_split": 1.0}
    metrics = federation.run_round(1).metrics
    assert 0 < metrics["personal/accuracy_local"] <= 1
    assert "personal/accuracy_whole" not in metrics


@pytest.mark.parametrize("words", ["measure.personal.kinds=[whole]", "measure.personal.samples=99"])
def test_samples_with_another_labelling_are_not_scored(words: str) -> None:
    with pytest.raises(InputError, match=r"^measure\.personal: with .* data=synthetic"):
        federate(*SYNTHETIC, words)
