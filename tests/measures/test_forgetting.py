"""Drops of the classes' accuracies, by hand and in a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedexp
from fedexp.drawing.data_figure import DataFigure, read_numbers
from fedexp.measures.forgetting import Forgetting
from fedexp.measures.round_results import Measured

ROUNDS = [
    {"cat": 0.5, "dog": 0.8},
    {"cat": 0.7, "dog": 0.6},
    {"cat": 0.4, "dog": 0.7},
]


def after(accuracies: Mapping[str, float], is_last: bool = False) -> Any:
    return SimpleNamespace(class_accuracies=lambda: accuracies, is_last=is_last)


def test_drops_from_the_best_round_by_hand() -> None:
    measure = Forgetting(every=1)
    assert measure(after(ROUNDS[0])) == Measured()  # no earlier round: absent
    # the cat rises from 0.5 to 0.7, the dog falls from 0.8 to 0.6
    second = measure(after(ROUNDS[1]))
    assert second.metrics == pytest.approx({"forgetting/mean": 0.1, "forgetting/max": 0.2})
    assert second.figures == {}
    # the cat falls from 0.7 to 0.4, the dog is 0.1 below its best round, the first
    third = measure(after(ROUNDS[2], is_last=True))
    assert third.metrics == pytest.approx({"forgetting/mean": 0.2, "forgetting/max": 0.3})
    figure = third.figures["forgetting"]
    assert isinstance(figure, DataFigure)
    assert list(figure.data["class"]) == ["cat", "dog"]  # the largest drop on top
    assert figure.data["drop"] == pytest.approx([0.3, 0.1])
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.3, 0.1])  # type: ignore[attr-defined]


def test_a_class_counts_from_its_second_round_on() -> None:
    measure = Forgetting(every=1)
    measure(after({"cat": 0.5}))
    assert measure(after({"cat": 0.25, "eel": 0.9})).metrics["forgetting/mean"] == 0.25
    assert measure(after({"cat": 0.25, "eel": 0.4})).metrics["forgetting/mean"] == 0.375


def test_without_a_global_model_nothing_is_measured() -> None:
    measure = Forgetting(every=1)
    assert measure(after({})) == measure(after({})) == Measured()


def test_a_resumed_measure_gives_the_same_bits() -> None:
    whole, first, resumed = (Forgetting(every=1) for _ in range(3))
    for accuracies in ROUNDS[:2]:
        whole(after(accuracies))
        first(after(accuracies))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert resumed(after(ROUNDS[2])) == whole(after(ROUNDS[2]))


def test_its_rounds() -> None:
    assert [r for r in range(6) if Forgetting(every=2).due(r, 5)] == [2, 4, 5]


def test_a_run_with_forgetting_as_its_objective(tmp_path: Path) -> None:
    small = ["algorithm=fedavg", "rounds=3", "clients.count=4", "clients.per_round=2"]
    small += ["local.epochs=1", "data.subset=100", "tracking.wandb.mode=disabled"]
    small += ["measure.personal=null", f"hydra.run.dir={tmp_path}"]
    result = fedexp.run([*small, "+measure=forgetting", "objective=forgetting/mean"])
    frame = result.metrics
    classes = [name for name in frame if name.startswith("global/per_class_accuracy.")]
    accuracies = frame[classes].to_numpy()
    drops = [np.maximum(0, accuracies[:r].max(axis=0) - accuracies[r]) for r in (1, 2)]
    assert len(classes) == 10
    assert np.isnan(frame["forgetting/mean"][0])
    assert frame["forgetting/mean"][1:].tolist() == pytest.approx([each.mean() for each in drops])
    assert frame["forgetting/max"][1:].tolist() == pytest.approx([each.max() for each in drops])
    assert result.objective("forgetting/mean") == frame["forgetting/mean"].iloc[-1]
    statistics = result.summary["metrics"]["forgetting/mean"]
    assert statistics["best"] == frame["forgetting/mean"].min()
    assert "forgetting/max" not in result.summary["metrics"]
    headlines = json.loads((tmp_path / "run.json").read_text())["headlines"]
    assert headlines["forgetting/mean"] == "lower"
    drawn = sorted(path.name for path in (tmp_path / "figures").glob("forgetting*"))
    assert drawn == ["forgetting_0003.csv", "forgetting_0003.png"]
    saved = read_numbers(tmp_path / "figures" / "forgetting_0003.csv")
    assert saved["drop"] == pytest.approx(sorted(drops[1], reverse=True))
