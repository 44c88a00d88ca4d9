"""``personalization=finetune_best``: the best global model is tuned after the last round."""

from typing import Any

import pytest
import torch
from support.federations import equal, federate
from support.small_federations import ONE_STEP, SMALL, copy, gradient, personalized

from fedexp.core.messages import Message, Tensors
from fedexp.runtime.federation import Federation

RATE, EPOCHS = 0.3, 10
PLAIN_DESCENT = [*ONE_STEP, f"optimizer.lr={RATE}", "optimizer.round_decay=1", "rounds=3"]
SKEWED = ["partition.beta=0.1", "data.subset=600"]


def run(federation: Federation) -> tuple[list[Tensors], list[dict[str, float]]]:
    """Three rounds, the last of which starts from zeros: (global weights, metrics) of each."""
    weights, metrics = [], []
    for round in (1, 2, 3):
        if round == 3:
            zeros = {
                name: value.clone().zero_() for name, value in federation.server.weights.items()
            }
            federation.server.weights = zeros
        metrics.append(dict(federation.run_round(round).metrics))
        weights.append(copy(federation.server.weights))
    return weights, metrics


def own_accuracy(federation: Federation, client: int, weights: Tensors) -> float:
    """Accuracy of these weights on the client's test split, one sample at a time."""
    module = federation.module.eval()
    module.load(weights)
    data, right = federation.data, []
    for index in data.clients[client].test_index.tolist():
        inputs, labels = data.test.gather(torch.tensor([index]))
        with torch.no_grad():
            right.append(float(module.head(module.backbone(inputs)).argmax() == labels[0]))
    return sum(right) / len(right)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_best_rounds_model_is_tuned_by_plain_descent(engine: str) -> None:
    options = [f"engine={engine}", *PLAIN_DESCENT, *SKEWED]
    federation = personalized("finetune_best", *options)
    weights, metrics = run(federation)
    scores = [each["global/accuracy"] for each in metrics]
    best = scores.index(max(scores))
    assert best < 2, scores
    tuned, untuned = [], []
    for client in federation.store.clients_with_model:
        model = weights[best]
        untuned.append(own_accuracy(federation, client, model))
        for _ in range(EPOCHS):
            steps = gradient(federation, client, Message(best + 1, model), model)
            model = {name: value - RATE * steps[name] for name, value in model.items()}
        tuned.append(own_accuracy(federation, client, model))
    found = metrics[2]
    assert found["personal/accuracy_test_split"] == pytest.approx(sum(tuned) / len(tuned))
    name = "personal/accuracy_test_split_untuned"
    assert found[name] == pytest.approx(sum(untuned) / len(untuned))
    assert sum(tuned) > sum(untuned)


def test_personal_models_are_scored_in_the_last_round_only() -> None:
    _, metrics = run(personalized("finetune_best", "rounds=3", "measure.personal.every=1"))
    counts = [sum(name.startswith("personal/") for name in each) for each in metrics]
    assert counts[:2] == [0, 0]
    untuned = {name for name in metrics[2] if name.endswith("_untuned")}
    kinds = ("uniform", "local", "test_split", "whole")
    assert untuned == {f"personal/accuracy_{kind}_untuned" for kind in kinds}


def test_held_out_samples_choose_the_model_if_there_are_any() -> None:
    federation = personalized("finetune_best", "rounds=3", "data.validation=0.2")
    _, metrics = run(federation)
    best: Any = federation.measures["best"]
    scores = [each["validation/accuracy"] for each in metrics]
    assert best.score == max(scores)
    assert best.message.round == 1 + scores.index(max(scores))
    assert metrics[2]["validation/personal_accuracy_untuned"] >= 0


def test_only_scored_rounds_can_be_the_best() -> None:
    federation = personalized("finetune_best", "rounds=3", "measure.global.every=2")
    weights, _ = run(federation)
    best: Any = federation.measures["best"]
    assert best.message.round == 2
    assert equal(best.message.weights, weights[1])


def test_training_is_the_same_with_it() -> None:
    """Even after the evaluation of the last round, if a run is prolonged."""
    ends = []
    for start in ("present", "best"):
        head = ["head=prototype", "personalization.epochs=1"]
        federation = personalized("finetune", *head, f"personalization.start={start}", "rounds=2")
        for round in (1, 2, 3):
            federation.run_round(round)
        ends.append(copy(federation.server.weights))
    assert equal(*ends)


@pytest.mark.parametrize(
    "options",
    [["personalization=finetune"], ["personalization=finetune_best", "measure.personal=null"]],
    ids=" ".join,
)
def test_no_model_is_kept_when_none_is_needed(options: list[str]) -> None:
    federation = federate(*SMALL, "rounds=1", *options)
    metrics = federation.run_round(1).metrics
    best: Any = federation.measures["best"]
    assert best.message is None
    assert "best" not in federation.measures.state_dict()
    assert not any("untuned" in name for name in metrics)
