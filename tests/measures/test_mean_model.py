"""The mean of the cohort's models against one computed from the updates."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from torch.func import functional_call

from fedexp.core.messages import Message
from fedexp.runtime.federation import Federation
from fedexp.testing import check_measure

SMALL = ["clients.count=6", "clients.per_round=3", "data.subset=300", "local.epochs=1"]


def scores(federation: Federation, weights: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Accuracy and loss on the test split."""
    model = federation.global_model(1)
    ((inputs, labels),) = federation.data.test.batches(10_000)
    with torch.no_grad():
        logits = functional_call(model, weights, (inputs,))
    return (
        (logits.argmax(1) == labels).double().mean().item(),
        F.cross_entropy(logits, labels).item(),
    )


@pytest.mark.parametrize(
    "method",
    [
        ["algorithm=feddyn"],
        ["algorithm=feddc"],
        ["algorithm=feddc", "regularizer.drifts=cohort"],
    ],
    ids=" ".join,
)
def test_both_models_of_feddyn_and_feddc_are_scored(method: list[str]) -> None:
    options = [*method, *SMALL, "regularizer.alpha=1", "sampler=round_robin"]
    federation, twin = federate(*options), federate(*options)
    for round in (1, 2):
        twin.server.load_state_dict(federation.server.state_dict())
        message: Message = twin.server.broadcast(round)
        cohort = twin.sampler.select(round)
        sent = [each.weights for each in twin.engine.train(cohort, message)]
        mean = {
            name: torch.stack([weights[name] for weights in sent]).double().mean(dim=0).float()
            for name in sent[0]
        }
        metrics = federation.run_round(round).metrics
        accuracy, loss = scores(federation, mean)
        assert metrics["global/accuracy_mean_model"] == pytest.approx(accuracy)
        assert metrics["global/loss_mean_model"] == pytest.approx(loss, rel=1e-4)
        accuracy, loss = scores(federation, dict(federation.server.weights))
        assert metrics["global/accuracy"] == pytest.approx(accuracy)
        assert metrics["global/loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["global/loss"] != pytest.approx(metrics["global/loss_mean_model"], rel=1e-3)


def test_of_fedavg_with_equal_weights_both_models_are_one() -> None:
    federation = federate(*SMALL, "aggregator=uniform", "+measure=mean_model")
    metrics = federation.run_round(1).metrics
    assert metrics["global/accuracy_mean_model"] == metrics["global/accuracy"]
    assert metrics["global/loss_mean_model"] == pytest.approx(metrics["global/loss"])


def test_nothing_is_measured_without_updates_or_between_its_rounds() -> None:
    lost = federate(*SMALL, "algorithm=feddyn", "faults=unreliable", "faults.drop=1")
    assert "global/accuracy_mean_model" not in lost.run_round(1).metrics
    rare = federate(*SMALL, "algorithm=feddyn", "measure.mean_model.every=2", "rounds=3")
    found = [rare.run_round(round).metrics for round in (1, 2, 3)]
    assert ["global/accuracy_mean_model" in metrics for metrics in found] == [False, True, True]


@pytest.mark.slow
def test_it_keeps_the_contract_of_a_measure() -> None:
    check_measure("+measure=mean_model")
