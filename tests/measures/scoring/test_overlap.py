"""Evaluation while the next round trains: the same numbers, in order."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from federations import federate

import fedexp
from fedexp.core.messages import Message
from fedexp.errors import Interrupted
from fedexp.federation import Federation
from fedexp.measures.scoring.scoring import Scoring
from fedexp.tracking.tracker import Record, Tracker

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=100", "rounds=4"]
SMALL += ["measure.personal.every=2", "data.validation=0.2"]
ON = "evaluation.overlap=true"
NEW = "+measure=[forgetting,clients,fairness]"


class Recorder(Tracker):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        self.records.append(record)


def logged(federation: Federation) -> list[Record]:
    """The records of a whole run of four rounds."""
    recorder = federation.tracker = Recorder()
    federation.run(4)
    return recorder.records


def numbers(record: Record) -> dict[str, float]:
    return {name: v for name, v in record.metrics.items() if not name.startswith("time/")}


@pytest.fixture
def evaluating_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the threads that evaluated global models."""
    names: set[str] = set()
    score = Scoring.score_global

    def recorded(scoring: Scoring, message: Message, samples: Any = None) -> Any:
        names.add(threading.current_thread().name)
        return score(scoring, message, samples)

    monkeypatch.setattr(Scoring, "score_global", recorded)
    return names


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fednh", "+measure=step_cosine"],
        ["algorithm=fedavg", "engine=vectorized", "optimizer=adam"],
        ["personalization=finetune_best", "measure.personal.every=1"],
        ["personalization=finetune", "model.hidden=[8]"],
        [NEW, "measure.clients.every=1"],
        [NEW, "personalization=finetune_best", "measure.clients.every=1"],
    ],
    ids=" ".join,
)
def test_a_run_gives_the_same_numbers(overrides: list[str], evaluating_threads: set[str]) -> None:
    expected = logged(federate(*SMALL, *overrides))
    assert len(evaluating_threads) == 1
    found = logged(federate(*SMALL, *overrides, ON))
    assert len(evaluating_threads) == 2
    assert [record.round for record in found] == list(range(5))
    for one, other in zip(expected, found, strict=True):
        assert one.tables == other.tables
        assert one.figures.keys() == other.figures.keys()
        assert list(one.metrics) == list(other.metrics)
        assert numbers(one) == numbers(other)
        assert one.per_class == other.per_class


def test_a_round_trains_before_the_one_before_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation of round 1 waits for the training of round 2 to begin."""
    federation = federate(*SMALL, ON)
    begun = threading.Event()
    start_round, score = federation.start_round, Scoring.score_global

    def started(round: int) -> Any:
        if round == 2:
            begun.set()
        return start_round(round)

    def scored(scoring: Scoring, message: Message, samples: Any = None) -> Any:
        assert begun.wait(timeout=60)
        return score(scoring, message, samples)

    monkeypatch.setattr(federation, "start_round", started)
    monkeypatch.setattr(Scoring, "score_global", scored)
    assert [record.round for record in logged(federation)] == list(range(5))


def test_an_error_of_the_evaluation_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = federate(*SMALL, ON)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the evaluation")

    monkeypatch.setattr(Scoring, "score_global", fail)
    with pytest.raises(ZeroDivisionError, match="in the evaluation"):
        federation.run(4)


def rows(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{n: v for n, v in row.items() if not n.startswith("time/")} for row in found]


QUIET = ["algorithm=fedavg", "tracking.wandb.mode=disabled", "tracking.progress=false"]


def test_an_interrupted_run_has_all_its_rounds_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedexp.run([*SMALL, *QUIET, f"hydra.run.dir={tmp_path / 'whole'}"])
    start_round = Federation.start_round

    def interrupted(federation: Federation, round: int) -> Any:
        if round == 2:
            signal.raise_signal(signal.SIGINT)
        return start_round(federation, round)

    folder = tmp_path / "interrupted"
    monkeypatch.setattr(Federation, "start_round", interrupted)
    with pytest.raises(Interrupted):
        fedexp.run([*SMALL, *QUIET, ON, f"hydra.run.dir={folder}"])
    assert rows(folder) == rows(whole.folder)[:2]
    monkeypatch.undo()
    resumed = fedexp.run([*SMALL, *QUIET, ON, f"resume={folder}"])
    assert rows(folder) == rows(whole.folder)
    assert resumed.summary["weights_digest"] == whole.summary["weights_digest"]
