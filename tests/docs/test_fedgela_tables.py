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
    assert len(by_cell) == 10
    for cell, own in by_cell:
        shown = [f"{own['squared_factor'].mean():.1f}"]
        for energy in (0.3, 1, 3, 10, 30, 100):
            scores = own[own["E_W"] == energy]["score"]
            shown.append(_with_interval(scores) if len(scores) else "")
        name = str(cell).removeprefix("leaderboard/")
        assert f"| {name} | {' | '.join(shown)} |" in TEXT
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    regrets = means.rsub(means.max(axis=1), axis=0)
    for energy in (1, 3, 10, 30):
        mean, largest = regrets[energy].mean(), regrets[energy].max()
        assert f"| E_W = {energy} | {mean:.3f} | {largest:.3f} |" in TEXT


def _with_interval(scores: pd.Series) -> str:
    _, high = stats.t.interval(0.95, len(scores) - 1, scores.mean(), stats.sem(scores))
    return f"{scores.mean():.3f} ± {high - scores.mean():.3f}"
