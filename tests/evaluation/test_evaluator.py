from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.config.schema import Evaluation
from fedexp.core.description import Description
from fedexp.core.messages import Message
from fedexp.distributed.ranks import Ranks
from fedexp.engines.predictions import Predictions
from fedexp.evaluation.evaluator import Evaluator

LABELS = torch.tensor([0, 0, 1])
CORRECT = torch.tensor([True, False, True])


class Engine:
    """Gives every model the same predictions."""

    def __init__(self, validation: list[bool]) -> None:
        self.validation = torch.tensor(validation, dtype=torch.bool)

    def evaluate(self, message: Message, samples: object = None) -> Predictions:
        return Predictions(CORRECT, 0.7) if samples is None else Predictions(self.validation, 0.9)

    def evaluate_personal(
        self, message: Message, tune: bool, select: object
    ) -> Iterator[tuple[int, Predictions]]:
        yield 0, Predictions(CORRECT, 0.7, validation=~self.validation[:1])


def evaluator(
    personal: str,
    every: int = 1,
    personal_every: int = 1,
    rounds: int = 10,
    attack: str = "off",
    validation: list[bool] | None = None,
    fewshot: Callable[[Message], dict[str, float]] | None = None,
) -> Evaluator:
    client = SimpleNamespace(class_counts=torch.tensor([1, 1, 0]), test_index=torch.tensor([2]))
    data: Any = SimpleNamespace(
        test=SimpleNamespace(labels=LABELS, targets=LABELS),
        validation=validation or [],
        description=Description("animals", (1,), ("cat", "dog", "eel")),
        clients=[client],
        counted_classes=client.class_counts[None],
    )
    schedule = Evaluation.model_validate(
        {
            "every": every,
            "targets": [],
            "personal": personal,
            "personal_every": personal_every,
            "personal_metrics": ["uniform", "local", "test_split", "whole", "angles"],
            "personal_samples": None,
            "batch_size": 1,
            "overlap": False,
            "step_cosine": False,
            "fewshot": {"ways": 2, "shots": 1, "queries": 1, "episodes": 2},
            "membership": {"attack": attack, "samples": 1, "shadows": 4, "epochs": 1},
        }
    )
    engine: Any = Engine(validation or [])
    attacked = {"attacked": 1.0}
    return Evaluator(
        schedule, rounds, engine, data, [], lambda message: attacked, Ranks(), fewshot=fewshot
    )


def test_scores_by_hand() -> None:
    scores = evaluator("all")(Message(1, {}))
    assert scores.metrics["global/accuracy"] == pytest.approx(2 / 3)
    assert scores.metrics["global/loss"] == 0.7
    assert scores.per_class == {"cat": 0.5, "dog": 1.0}  # no eel in the test split: absent, not 0
    assert scores.metrics["personal/accuracy_uniform"] == pytest.approx(2 / 3)
    assert scores.metrics["personal/accuracy_test_split"] == 1.0


def test_the_schedule_and_the_last_round() -> None:
    due = evaluator("all", every=4, personal_every=5)
    scored = {round: due(Message(round, {})).metrics for round in range(1, 11)}
    assert [r for r, m in scored.items() if "global/accuracy" in m] == [4, 8, 10]
    assert [r for r, m in scored.items() if "personal/accuracy_local" in m] == [5, 10]
    assert all("time/eval_s" in metrics for metrics in scored.values())


def test_personal_evaluation_can_be_off() -> None:
    metrics = evaluator("off")(Message(10, {})).metrics
    assert not any(name.startswith("personal/") for name in metrics)


def test_validation_scores_come_with_the_others() -> None:
    due = evaluator("all", every=2, personal_every=5, validation=[True, True, False, True])
    scored = {round: due(Message(round, {})).metrics for round in range(1, 11)}
    assert [r for r, m in scored.items() if "validation/accuracy" in m] == [2, 4, 6, 8, 10]
    assert [r for r, m in scored.items() if "validation/personal_accuracy" in m] == [5, 10]
    assert scored[10]["validation/accuracy"] == 0.75
    assert scored[10]["validation/loss"] == 0.9
    assert scored[10]["validation/personal_accuracy"] == 0.0
    assert scored[10]["global/loss"] == 0.7


def test_without_held_out_samples_there_is_no_validation() -> None:
    metrics = evaluator("all")(Message(10, {})).metrics
    assert not any(name.startswith("validation/") for name in metrics)


def test_the_attack_comes_once_after_the_last_round() -> None:
    due = evaluator("off", attack="loss")
    assert [r for r in range(1, 11) if "attacked" in due(Message(r, {})).metrics] == [10]
    never = evaluator("off")
    assert not any("attacked" in never(Message(r, {})).metrics for r in range(1, 11))


def test_with_unseen_test_classes_the_test_split_has_no_accuracy() -> None:
    due = evaluator(
        "off", every=2, validation=[True, False], fewshot=lambda message: {"fewshot": 0.3}
    )
    scored = {round: due(Message(round, {})) for round in range(1, 5)}
    assert [r for r, scores in scored.items() if "fewshot" in scores.metrics] == [2, 4]
    assert scored[2].metrics["validation/accuracy"] == 0.5
    assert not {"global/accuracy", "global/loss"} & scored[2].metrics.keys()
    assert scored[2].per_class == {}
