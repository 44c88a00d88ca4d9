"""The cohort's personal accuracies, against the table of the clients."""

import numpy as np
import pytest
from support.federations import compose, federate

from fedexp.errors import InputError
from fedexp.runtime.plan import plan

SMALL = ["clients.count=6", "clients.per_round=2", "local.epochs=1", "data.subset=240"]
SMALL += ["rounds=3", "partition.beta=0.3", "measure.personal.every=1", "model.hidden=[8]"]


def test_the_mean_is_over_the_clients_of_the_round() -> None:
    federation = federate(*SMALL, "+measure=[cohort,clients]")
    for round in (1, 2, 3):
        message = federation.server.broadcast(round)
        chosen = set(federation.sampler.select(message.round))
        found = federation.run_round(round)
        table = found.tables["clients"]
        accuracies = dict(zip(table["client"], table["accuracy_local"], strict=True))
        expected = np.mean([accuracies[client] for client in chosen])
        assert found.metrics["cohort/accuracy_local"] == pytest.approx(expected)
    assert found.metrics["cohort/accuracy_local"] != found.metrics["personal/accuracy_local"]


def test_the_cohort_of_everybody_is_everybody() -> None:
    federation = federate(*SMALL, "+measure=cohort", "clients.per_round=6")
    metrics = federation.run_round(1).metrics
    for kind in ("uniform", "local", "test_split", "whole"):
        assert metrics[f"cohort/accuracy_{kind}"] == pytest.approx(
            metrics[f"personal/accuracy_{kind}"]
        )


def test_models_of_clients_in_flight_must_be_kept() -> None:
    """With fewer updates a step than clients in flight, some come from earlier cohorts."""
    words = [*SMALL, "+measure=cohort", "coordination=buffered", "coordination.buffer=1"]
    words += ["system=phones"]
    with pytest.raises(InputError, match=r"measure\.cohort\.of=cohort: .* should be all"):
        plan(compose(*words, "measure.personal.of=cohort"))
    federation = federate(*words, "measure.personal.of=cohort", "measure.cohort.of=all")
    assert all("cohort/accuracy_local" in federation.run_round(t).metrics for t in (1, 2, 3))
