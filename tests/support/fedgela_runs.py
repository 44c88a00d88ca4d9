"""The stored runs of FedGELA on digits and on small cells of CIFAR-10, and their gains."""

import pandas as pd
from generate.results import RESULTS

from support.result_pages import gain, published, stored

CELLS = {"two classes": "cifar10_p10c2", "Dirichlet(0.1)": "cifar10_dir01"}
GLOBAL, BEST = "global/accuracy", "global/accuracy, best round"
LAST_ROUNDS = 5
PERSONAL = "personal/accuracy_test_split"
PUBLISHED = {
    "fedavg": "fedavg personalization=finetune_best",
    "fedgela": "fedgela",
}


def cifar10(cell: str, **options: str) -> list[dict[str, float]]:
    """The metrics of a cell's runs with exactly these options of method and head, by seed."""
    asked = {key.replace("__", "."): value for key, value in options.items()}
    found = {}
    for run in stored("cifar10_fedgela"):
        words = dict(word.split("=", 1) for word in run["overrides"])
        own = {
            k: v
            for k, v in words.items()
            if k.startswith(("algorithm", "head.", "personalization"))
        }
        if words["experiment"] == f"fedgela/{CELLS[cell]}" and own == asked:
            found[words["seed"]] = run["metrics"]
    return [found[seed] for seed in sorted(found)]


def length_one(algorithm: str, energy: str) -> dict[str, str]:
    return {"algorithm": algorithm, "head__feature_norm": "l2", "head__energy": energy}


def paper(cell: str, algorithm: str, metric: str) -> float:
    """The paper's number."""
    return published(f"fedgela/{CELLS[cell]}", metric)[PUBLISHED[algorithm]]


def three_seeds(cell: str, algorithm: str, metric: str) -> list[float]:
    """One value a seed; FedAvg's personal models are its best global model, trained on."""
    options = length_one("fedgela", "1") if algorithm == "fedgela" else {"algorithm": "fedavg"}
    if algorithm == "fedavg" and metric == PERSONAL:
        options["personalization"] = "finetune_best"
    found = [run[metric] for run in cifar10(cell, **options)]
    assert len(found) == 3
    return found


def gains(cell: str, metric: str) -> list[float]:
    """FedGELA's gain over FedAvg, one a seed."""
    own, other = (three_seeds(cell, name, metric) for name in ("fedgela", "fedavg"))
    return [a - b for a, b in zip(own, other, strict=True)]


def papers_gain(cell: str, metric: str) -> float:
    """FedGELA's gain in its paper."""
    return paper(cell, "fedgela", metric) - paper(cell, "fedavg", metric)


def recent(runs: pd.DataFrame, metric: str, rounds: int) -> float:
    """Mean over seeds of the mean of the last measurements."""
    measured = runs.dropna(subset=[metric]).sort_values("round")
    return float(measured.groupby("seed")[metric].apply(lambda own: own.tail(rounds).mean()).mean())


def by_seed(runs: pd.DataFrame, metric: str, rounds: int) -> pd.Series:
    """The mean of each seed's last measurements."""
    return pd.Series({seed: recent(own, metric, rounds) for seed, own in runs.groupby("seed")})


def parts(metric: str, rounds: int) -> dict[tuple[str, int], pd.Series]:
    """(Algorithm, E_W) -> one value a seed of the runs with both of FedGELA's parts."""
    curves = pd.read_csv(RESULTS / "digits_fedgela_parts.csv")
    cells = curves.groupby(["algorithm", "head.energy"])
    return {(str(n), int(str(energy))): by_seed(own, metric, rounds) for (n, energy), own in cells}


def between(
    values: dict[tuple[str, int], pd.Series], own: tuple[str, int], other: tuple[str, int]
) -> str:
    return gain(list(values[own] - values[other]))
