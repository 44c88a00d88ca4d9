"""Inequality of personal accuracies, against definitions in plain loops."""

import numpy as np
import pytest
from support.federations import federate

from fedexp.drawing.data_figure import DataFigure
from fedexp.measures.fairness import gini
from fedexp.measures.scoring.scoring import Scoring


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_gini_is_half_the_relative_mean_difference_of_all_pairs(size: int) -> None:
    values = np.random.default_rng(size).random(size)
    differences = [abs(x - y) for x in values for y in values]
    expected = sum(differences) / len(differences) / (2 * values.mean())
    assert gini(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.4, 0.4, 0.4], 0.0),
        ([0.0, 0.0, 0.9, 0.0], 3 / 4),  # one has all: (n - 1) / n
        ([0.0, 0.0], 0.0),
        ([0.7], 0.0),
        ([1.0, 3.0], 1 / 4),  # |1 - 3| in two of four pairs, over twice the mean 2
    ],
)
def test_gini_by_hand(values: list[float], expected: float) -> None:
    assert gini(np.array(values)) == pytest.approx(expected, abs=1e-15)


SMALL = ["clients.count=12", "clients.per_round=12", "local.epochs=1", "data.subset=300"]
SMALL += ["rounds=2", "partition.beta=0.3", "measure.personal.every=1", "model.hidden=[8]"]


def test_one_pass_over_the_models_serves_personal_and_fairness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []
    score = Scoring.score_personal

    def counted(scoring: Scoring, *arguments: object) -> object:
        passes.append(1)
        return score(scoring, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Scoring, "score_personal", counted)
    federation = federate(*SMALL, "+measure=[fairness,clients]")
    first, last = (_record for _record in (federation.run_round(n) for n in (1, 2)))
    assert len(passes) == 2
    for found in (first, last):
        metrics, table = found.metrics, found.tables["clients"]
        accuracies = np.array(table["accuracy_local"])
        assert len(accuracies) == 12
        assert metrics["fairness/gini"] == pytest.approx(gini(accuracies))
        assert metrics["fairness/variance"] == pytest.approx(metrics["personal/std"] ** 2)
        assert metrics["fairness/variance"] == pytest.approx(
            ((accuracies - accuracies.mean()) ** 2).mean()
        )
        # a tenth of twelve clients, rounded up: the two worst
        assert metrics["fairness/worst_decile"] == pytest.approx(np.sort(accuracies)[:2].mean())
        assert metrics["fairness/worst_decile"] == metrics["personal/worst_decile"]
    assert first.figures.keys() & {"fairness"} == set()
    figure = last.figures["fairness"]
    assert isinstance(figure, DataFigure)
    assert list(figure.data["accuracy"]) == last.tables["clients"]["accuracy_local"]
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert sum(heights) == 12


def test_another_accuracy_without_personal() -> None:
    overrides = ["measure.personal=null", "+measure=fairness", "measure.fairness.kind=whole"]
    metrics = federate(*SMALL, *overrides, "measure.fairness.every=1").run_round(1).metrics
    with_personal = federate(*SMALL).run_round(1).metrics
    assert metrics["fairness/variance"] == pytest.approx(with_personal["personal/std_whole"] ** 2)
    assert metrics["fairness/worst_decile"] == with_personal["personal/worst_decile_whole"]
    assert not any(name.startswith("personal/") for name in metrics)


def test_a_method_that_tunes_the_best_model_is_measured_after_the_last_round() -> None:
    tuned = ["personalization=finetune_best", "+measure=fairness"]
    federation = federate(*SMALL, *tuned)
    found = [federation.run_round(round).metrics for round in (1, 2)]
    assert ["fairness/gini" in metrics for metrics in found] == [False, True]
    assert found[1]["fairness/worst_decile"] == found[1]["personal/worst_decile"]
