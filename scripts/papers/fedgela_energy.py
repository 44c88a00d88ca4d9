"""Which scale E_W FedGELA needs, by validation accuracy, and whether the partition tells it.

    python scripts/papers/fedgela_energy.py scripts/results/fedgela_energy.csv
    python scripts/papers/fedgela_energy.py NEW.csv --runs SWEEP...    # writes NEW.csv first

SWEEP is a folder of runs that vary ``experiment`` or ``partition`` (the cells), ``head.energy`` and
``seed``. A run's score is its mean validation accuracy over the last five rounds. The script prints
each cell's curve over E_W with 95 % intervals and the regret of each E_W: how far its score is
below the cell's best.

Then it tests a guess. A client's factors scale the logit of a sample's true class y by Phi(y), so
E_W times the mean of Phi(y)^2 over all training samples may be what matters. If so, one constant
of this product gives a smaller regret in a new cell than one constant E_W. Each constant is chosen
on all cells but one and judged on that one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from fedexp.heads.adaptation import adaptation
from fedexp.state.run_folder import CLIENT_NAME

PRODUCTS = np.geomspace(1, 300, 101)
"""The values of E_W times the mean squared factor among which a constant is chosen."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--runs", nargs="+", type=Path, default=[])
    arguments = parser.parse_args()
    if arguments.runs:
        found = [_row(path) for sweep in arguments.runs for path in sweep.rglob("summary.json")]
        pd.DataFrame(found).sort_values(["cell", "E_W", "seed"]).to_csv(arguments.csv, index=False)
    runs = pd.read_csv(arguments.csv)
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    print(_curves(runs).to_string(), end="\n\n")
    regrets = means.rsub(means.max(axis=1), axis=0)
    summary = pd.DataFrame({"mean regret": regrets.mean(), "largest regret": regrets.max()})
    print(summary.round(4).to_string(), end="\n\n")
    _test_guess(means, runs.groupby("cell")["squared_factor"].mean())


def _row(path: Path) -> dict[str, Any]:
    """The cell, E_W, seed and score of a run, and the mean of Phi(y)^2 over its samples."""
    summary = json.loads(path.read_text())
    words = dict(word.split("=", 1) for word in summary["overrides"] if "=" in word)
    return {
        "cell": " ".join(words[key] for key in sorted(words) if key.startswith(("exp", "part"))),
        "E_W": float(words["head.energy"]),
        "seed": int(words["seed"]),
        "score": summary["metrics"]["validation/accuracy"]["mean_last5"],
        "squared_factor": _squared_factor(path.parent / "partition.csv"),
    }


def _squared_factor(partition: Path) -> float:
    table = pd.read_csv(partition).drop(columns=["client", CLIENT_NAME], errors="ignore")
    counts = torch.tensor(table.to_numpy())
    factors = torch.stack([adaptation(each) for each in counts])
    return round(float((counts * factors.double() ** 2).sum() / counts.sum()), 4)


def _curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Cell by E_W: mean score and the half width of its 95 % interval over the seeds."""
    grouped = runs.groupby(["cell", "E_W"])["score"]
    mean, count = grouped.mean(), grouped.count()
    half = stats.t.ppf(0.975, count - 1) * grouped.std() / np.sqrt(count)
    return (mean.map("{:.3f}".format) + " ± " + half.map("{:.3f}".format)).unstack()


def _test_guess(means: pd.DataFrame, factors: pd.Series) -> None:
    """Compare a constant E_W with a constant product, each chosen without the judged cell."""
    best = means.idxmax(axis=1)
    table = pd.DataFrame({"mean squared factor": factors.round(2), "best E_W": best})
    table["product"] = (table["mean squared factor"] * best).round(1)
    rank = stats.spearmanr(factors[best.index], best)
    table["E_W fixed"] = [_regret_elsewhere(means, cell, None) for cell in means.index]
    table["product fixed"] = [_regret_elsewhere(means, cell, factors) for cell in means.index]
    print("regret in a cell that did not choose the constant:")
    print(table.round(4).to_string())
    print(table[["E_W fixed", "product fixed"]].mean().round(4).to_string())
    print(f"rank correlation of factor and best E_W: {rank.statistic:.2f} (p = {rank.pvalue:.2f})")


def _regret_elsewhere(means: pd.DataFrame, cell: str, factors: pd.Series | None) -> float:
    """The regret in ``cell`` of the constant with the smallest mean regret in the other cells."""
    scale = pd.Series(1.0, index=means.index) if factors is None else factors
    candidates = means.columns.to_numpy(float) if factors is None else PRODUCTS
    regrets = pd.DataFrame(
        {
            value: {name: _regret(means.loc[name], value / scale[name]) for name in means.index}
            for value in candidates
        }
    )
    chosen = regrets.drop(index=cell).mean().idxmin()
    return float(regrets[chosen][cell])


def _regret(curve: pd.Series, energy: float) -> float:
    """How far the curve at this E_W, interpolated over log E_W, is below its best."""
    curve = curve.dropna()  # a cell may have fewer values than the others
    at = np.interp(np.log(energy), np.log(curve.index.to_numpy(float)), curve.to_numpy(float))
    return float(curve.max() - at)


if __name__ == "__main__":
    main()
