"""The tables of FedGELA's scale in the results are the numbers of their CSV files."""

import pandas as pd
import pytest
from generate.results import RESULTS
from scipy import stats

TEXT = "".join((RESULTS / f"{name}.md").read_text() for name in ("fedgela", "cifar10_systems"))
LAST_ROUNDS = 5


def recent(runs: pd.DataFrame, metric: str, rounds: int) -> float:
    """Mean over seeds of the mean of the last measurements."""
    measured = runs.dropna(subset=[metric]).sort_values("round")
    return float(measured.groupby("seed")[metric].apply(lambda own: own.tail(rounds).mean()).mean())


@pytest.mark.parametrize("energy", [1, 10, 30])
@pytest.mark.parametrize(("algorithm", "name"), [("fedge", "FedGE"), ("fedgela", "FedGELA")])
def test_the_two_parts_on_digits(energy: int, algorithm: str, name: str) -> None:
    curves = pd.read_csv(RESULTS / "digits_fedgela_parts.csv")
    runs = curves[(curves["algorithm"] == algorithm) & (curves["head.energy"] == energy)]
    assert runs["seed"].nunique() == 5
    cells = [recent(runs, "global/accuracy", LAST_ROUNDS)]
    cells += [recent(runs, f"personal/accuracy_{kind}", 1) for kind in ("local", "uniform")]
    first = f"| {energy} " if algorithm == "fedge" else "| "
    assert f"{first}| {name} | {' | '.join(f'{each:.3f}' for each in cells)} |" in TEXT


@pytest.mark.parametrize("energy", [10, 30])
def test_the_scale_on_cifar10(energy: int) -> None:
    curves = pd.read_csv(RESULTS / "cifar10_fedgela_energy.csv")
    runs = curves[curves["head.energy"] == energy].set_index("round")["global/accuracy"]
    cells = " | ".join(f"{runs[round]:.3f}" for round in (10, 20, 30, 40, 50))
    assert f"| E_W = {energy} | {cells} |" in TEXT


def test_the_scale_by_validation() -> None:
    runs = pd.read_csv(RESULTS / "fedgela_energy.csv")
    by_cell = runs.groupby("cell")
    assert len(by_cell) == 8
    for cell, own in by_cell:
        shown = [f"{own['squared_factor'].mean():.1f}"]
        for energy in (0.3, 1, 3, 10, 30, 100):
            scores = own[own["E_W"] == energy]["score"]
            _, high = stats.t.interval(0.95, 4, scores.mean(), stats.sem(scores))
            shown.append(f"{scores.mean():.3f} ± {high - scores.mean():.3f}")
        name = str(cell).removeprefix("leaderboard/digits_")
        assert f"| {name} | {' | '.join(shown)} |" in TEXT
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    regrets = means.rsub(means.max(axis=1), axis=0)
    assert regrets.mean().round(3)[[1, 3, 10, 30]].tolist() == [0.051, 0.024, 0.015, 0.023]
    assert regrets.max().round(3)[[1, 3, 10, 30]].tolist() == [0.091, 0.057, 0.027, 0.084]
