"""Scores on the samples that clients hold out, against plain loops over clients."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import compose, federate, load

from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.plan import plan

SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.validation=0.2"]
SMALL += ["data.subset=400", "rounds=1", "partition.beta=1"]


def test_global_and_personal_scores_by_a_loop() -> None:
    federation = federate(*SMALL)
    metrics = federation.run_round(1).metrics
    resources = federation.engine.resources
    data, module = federation.data, federation.module.eval()

    def logits(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = data.train.gather(index)
        with torch.no_grad():
            return module(inputs), labels

    resources.load_global(federation.server.broadcast(1))
    outputs = [logits(client.validation_index) for client in data.clients]
    right = [float(y == x.argmax()) for each in outputs for x, y in zip(*each, strict=True)]
    losses = [F.cross_entropy(x, y).item() for each in outputs for x, y in zip(*each, strict=True)]
    assert len(right) > 50
    assert metrics["validation/accuracy"] == pytest.approx(sum(right) / len(right))
    assert metrics["validation/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    labels = [y.item() for each in outputs for y in each[1]]
    shares = [
        [hit for hit, label in zip(right, labels, strict=True) if label == c] for c in set(labels)
    ]
    balanced = sum(sum(own) / len(own) for own in shares) / len(shares)
    assert metrics["validation/balanced_accuracy"] == pytest.approx(balanced)

    accuracies = []
    for client in federation.store.clients_with_model:
        module.load(federation.store.model(client))
        found, labels = logits(data.clients[client].validation_index)
        accuracies.append((found.argmax(dim=1) == labels).double().mean().item())
    assert len(accuracies) == 3
    assert metrics["validation/personal_accuracy"] == pytest.approx(sum(accuracies) / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["personalization=fedrod", "head=etf", "personalization=finetune"]
)
def test_engines_agree(method: str) -> None:
    names = ("validation/accuracy", "validation/personal_accuracy")
    found = []
    for engine in ("serial", "vectorized"):
        metrics = federate(*SMALL, method, f"engine={engine}").run_round(1).metrics
        found.append([metrics[name] for name in names])
    assert found[0] == pytest.approx(found[1], abs=0.02)


def test_a_client_without_held_out_samples_has_no_score() -> None:
    federation = federate(*SMALL)
    data = federation.data
    first = data.clients[0]
    vars(first).update(validation_index=first.validation_index[:0])
    scoring = Scoring(federation.engine)
    assert scoring.validate_personal(0).shape == (0,)
    assert len(scoring.validate_personal(1)) == len(data.clients[1].validation_index)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["objective=validation/accuracy"],
            "objective=validation/accuracy: is not measured",
        ),
        (
            ["objective=validation/personal_accuracy", "measure.personal=null", SMALL[3]],
            "objective=validation/personal_accuracy: is not measured without measure.personal; ",
        ),
        (
            ["objective=validation/personal_accuracy", "measure.personal=null"],
            "objective=validation/personal_accuracy: is not measured without measure.personal and "
            "data.validation=0.1; ",
        ),
        (
            ["personalization=finetune", "measure.personal=null", "clients.held_out=0.2"],
            "objective=personal/accuracy_local: is not measured without measure.personal; should",
        ),
        (
            ["objective=personal/std", "measure.personal.kinds=[uniform]"],
            "objective=personal/std: is not measured; should",
        ),
        (
            ["objective=validation/loss", "algorithm=fedper", SMALL[3]],
            "objective=validation/loss: is not measured",
        ),
    ],
)
def test_an_objective_that_is_not_measured_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(compose(*overrides))
    assert str(caught.value).startswith(message)


def test_validation_can_be_the_objective() -> None:
    plan(compose("objective=validation/accuracy", SMALL[3]))
    plan(compose("objective=validation/personal_accuracy", "algorithm=fedper", SMALL[3]))


def test_classes_without_held_out_samples_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    tail = ["data.validation=0.1", "data.subset=200", "partition.long_tail=100", "partition=iid"]
    federation = federate("clients.count=4", "clients.per_round=2", *tail)
    held_out = federation.data.validation.labels.bincount(minlength=10)
    absent = ", ".join(str(c) for c in range(10) if not held_out[c])
    assert absent
    for round in (1, 2):
        federation.run_round(round)
    (line,) = [each for each in caplog.messages if each.startswith("validation/balanced_accuracy")]
    assert line == (
        "validation/balanced_accuracy leaves out classes without held-out samples: "
        f"{absent}; use a larger data.validation"
    )


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_every_class_counts_in_the_cell_with_a_long_tail(seed: int) -> None:
    """The seeds are those of the leaderboard's trials."""
    data = load("experiment=leaderboard/digits_long_tail", f"seed={seed}")
    assert data.validation.labels.bincount(minlength=10).min() > 0
