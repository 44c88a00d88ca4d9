"""The stored runs of systems on CIFAR-10 under one protocol, and their gains over a baseline."""

from functools import cache

import pandas as pd
from generate.results import RESULTS

ADDED = {"head": "cosine", "sampler": "hics", "loss": "rpcl_cpdr"}
"""Config group -> the option that a combination adds to an algorithm without it."""
CONTROL = "fedavg head=cosine"
"""FedAvg with FedNH's logits."""


@cache
def curves() -> pd.DataFrame:
    """The evaluated rounds of all runs, with a column ``method`` such as ``fednh sampler=hics``.

    ``fedgela`` has its preset's scale, ``fedgela head.energy=1`` another.
    """
    first = pd.read_csv(RESULTS / "cifar10_systems.csv")
    first["algorithm"] = first["algorithm"].replace("fedgela", "fedgela head.energy=1")
    runs = pd.concat([first, pd.read_csv(RESULTS / "cifar10_systems_seeds.csv")], ignore_index=True)
    runs["method"] = runs["algorithm"]
    for group, option in ADDED.items():
        is_added = (runs[group] == option) & ~runs["algorithm"].isin(["hics", "fedsc"])
        runs.loc[is_added, "method"] += f" {group}={option}"
    return runs


@cache
def accuracies() -> pd.Series:
    """Method, seed -> mean global accuracy of rounds 60 to 100."""
    runs = curves()
    late = runs[runs["round"] >= 60]
    return late.groupby(["method", "seed"])["global/accuracy"].mean()


def gains(method: str, base: str = "fedavg") -> list[float]:
    """The method's gains, one for each seed that both have."""
    found = accuracies()
    return list((found[method] - found[base]).dropna())
