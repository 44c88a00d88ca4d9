"""The default measures together, with models that all predict the same."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.core.description import Description
from fedexp.core.messages import Message
from fedexp.data.samples import Subset
from fedexp.distributed.ranks import Ranks
from fedexp.measures.angles import Angles
from fedexp.measures.faults import Faults
from fedexp.measures.global_model import GlobalModel
from fedexp.measures.measure import Measure
from fedexp.measures.panel import Measures, headlines, remembers
from fedexp.measures.personal import Personal
from fedexp.measures.round_results import Measured
from fedexp.measures.scoring.predictions import Predictions
from fedexp.measures.validation import Validation

LABELS = torch.tensor([0, 0, 1])
CORRECT = torch.tensor([True, False, True])


class Scoring:
    """Gives every model the same predictions, and counts the passes over the test split."""

    def __init__(self, validation: Sequence[bool], unseen: Sequence[str]) -> None:
        self.validation = torch.tensor(validation, dtype=torch.bool)
        client = SimpleNamespace(class_counts=torch.tensor([1, 1, 0]), test_index=torch.tensor([2]))
        held: Any = SimpleNamespace(labels=torch.tensor([0, 1, 1, 1]))
        data = SimpleNamespace(
            test=SimpleNamespace(labels=LABELS, targets=LABELS),
            validation=Subset(held, torch.arange(len(validation))),
            description=Description(
                "animals", (1,), ("cat", "dog", "eel"), unseen_classes=tuple(unseen)
            ),
            clients=[client],
            counted_classes=client.class_counts[None],
        )
        personalization = SimpleNamespace(tunes="global")
        self.resources = SimpleNamespace(data=data, personalization=personalization, components={})
        self.passes: list[str] = []

    def score_global(self, message: Message, samples: object = None) -> Predictions:
        self.passes.append("test" if samples is None else "validation")
        return Predictions(CORRECT, 0.7) if samples is None else Predictions(self.validation, 0.9)

    def client_scores(self, message: Message, samples: object, tune: bool) -> None:
        """The models are here."""

    def score_personal(
        self, message: Message, tune: bool, select: object
    ) -> Iterator[tuple[int, Predictions]]:
        self.passes.append("personal")
        yield 0, Predictions(CORRECT, 0.7, validation=~self.validation[:1])


def measures(
    *,
    every: int = 1,
    personal_every: int = 1,
    validation: Sequence[bool] = (),
    unseen: Sequence[str] = (),
    personal: bool = True,
    **more: Measure,
) -> tuple[Measures, Scoring]:
    """The measures of models in a run of ten rounds, and their scoring."""
    scoring: Any = Scoring(validation, unseen)
    found: dict[str, Measure] = {
        "global": GlobalModel(every, 1, []),
        "angles": Angles(every),
        "validation": Validation(every, 1),
    }
    if personal:
        kinds: Any = ["uniform", "local", "test_split", "whole", "angles"]
        found["personal"] = Personal(personal_every, kinds, "all", None)
    setting: Any = None
    for measure in found.values():
        measure.setup(setting, scoring.resources)
    return Measures({**found, **more}, 10, scoring, Ranks()), scoring


def after(every: Measures, round: int) -> Measured:
    """The results after this round."""
    server: Any = None
    every.begin_round(Message(round, {}))
    return every.after(Message(round, {}), server)


def test_scores_by_hand() -> None:
    scores = after(measures()[0], 1)
    assert scores.metrics["global/accuracy"] == pytest.approx(2 / 3)
    assert scores.metrics["global/loss"] == 0.7
    assert scores.per_class == {"cat": 0.5, "dog": 1.0}  # no eel in the test split: absent, not 0
    assert scores.metrics["personal/accuracy_uniform"] == pytest.approx(2 / 3)
    assert scores.metrics["personal/accuracy_test_split"] == 1.0


def test_the_schedule_and_the_last_round() -> None:
    due, _ = measures(every=4, personal_every=5)
    scored = {round: after(due, round).metrics for round in range(1, 11)}
    assert [r for r, m in scored.items() if "global/accuracy" in m] == [4, 8, 10]
    assert [r for r, m in scored.items() if "personal/accuracy_local" in m] == [5, 10]
    assert all("time/eval_s" in metrics for metrics in scored.values())


def test_before_training_nothing_is_scored_and_no_time_is_noted() -> None:
    every, scoring = measures()
    server: Any = None
    assert every.before_training(Message(0, {}), server) == Measured()
    assert scoring.passes == []


def test_personal_evaluation_can_be_off() -> None:
    metrics = after(measures(personal=False)[0], 10).metrics
    assert not any(name.startswith("personal/") for name in metrics)


def test_validation_scores_come_with_the_others() -> None:
    due, _ = measures(every=2, personal_every=5, validation=[True, True, False, True])
    scored = {round: after(due, round).metrics for round in range(1, 11)}
    assert [r for r, m in scored.items() if "validation/accuracy" in m] == [2, 4, 6, 8, 10]
    assert [r for r, m in scored.items() if "validation/personal_accuracy" in m] == [5, 10]
    assert scored[10]["validation/accuracy"] == 0.75
    assert scored[10]["validation/balanced_accuracy"] == pytest.approx((1 + 2 / 3) / 2)  # no eel
    assert scored[10]["validation/loss"] == 0.9
    assert scored[10]["validation/personal_accuracy"] == 0.0
    assert scored[10]["global/loss"] == 0.7


def test_without_held_out_samples_there_is_no_validation() -> None:
    metrics = after(measures()[0], 10).metrics
    assert not any(name.startswith("validation/") for name in metrics)


def test_with_unseen_test_classes_the_test_split_has_no_accuracy() -> None:
    due, scoring = measures(every=2, validation=[True, False], unseen=["owl"], personal=False)
    scored = {round: after(due, round) for round in range(1, 5)}
    assert [r for r, m in scored.items() if "validation/accuracy" in m.metrics] == [2, 4]
    assert scored[2].metrics["validation/accuracy"] == 0.5
    assert not {"global/accuracy", "global/loss"} & scored[2].metrics.keys()
    assert scored[2].per_class == {}
    assert set(scoring.passes) == {"validation"}


class Later(Measure):
    """Has two headlines, and counts the global metrics that earlier measures found."""

    headlines = {"later/seen": "higher", "later/loss": "lower"}
    remembers = "cohort"

    def __call__(self, after: Any) -> Measured:
        after.global_predictions()
        return Measured(
            {"later/seen": sum(name.startswith("global/") for name in after.found.metrics)}
        )


def test_predictions_are_computed_once_whoever_asks() -> None:
    every, scoring = measures(validation=[True], later=Later())
    found = after(every, 1)
    assert sorted(scoring.passes) == ["personal", "test", "validation"]
    assert found.metrics["later/seen"] == 2
    assert list(found.metrics)[-2:] == ["later/seen", "time/eval_s"]


def test_headlines_are_those_of_all_measures() -> None:
    named = {"global": GlobalModel(1, 1, []), "later": Later()}
    assert headlines(named) == {
        "global/accuracy": "higher",
        "global/loss": "lower",
        "later/seen": "higher",
        "later/loss": "lower",
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [([], "off"), ([None], "off"), ([None, "cohort"], "cohort"), (["cohort", "all"], "all")],
)
def test_models_are_remembered_for_the_measure_that_wants_most(
    wanted: list[Any], expected: str
) -> None:
    named: dict[str, Measure] = {str(number): Faults() for number, _ in enumerate(wanted)}
    for measure, each in zip(named.values(), wanted, strict=True):
        measure.remembers = each
    assert remembers(named) == expected
