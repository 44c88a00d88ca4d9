"""The tables of systems on CIFAR-10 in the results are the numbers of their CSV files."""

import pandas as pd
from generate.results import RESULTS

from fedexp.leaderboard.files import read_csv

TITLE = "### CIFAR-10, Dirichlet(0.3), five systems under one protocol\n"
NAMES = {
    "fedavg": "FedAvg",
    "fednh": "FedNH",
    "fedsc": "FedSC",
    "fedgela": "FedGELA",
    "fedptr_s": "FedPTR-S",
    "hics": "HiCS-FL",
}


def section() -> str:
    return (RESULTS / "README.md").read_text().partition(TITLE)[2].partition("\n### ")[0]


def test_every_measured_round_stands_in_the_table() -> None:
    values = pd.read_csv(RESULTS / "cifar10_systems.csv")
    rounds = values.pivot(index="algorithm", columns="round", values="global/accuracy")
    rounds = rounds.dropna(axis="columns", how="all")
    text = section()
    assert f"| global accuracy in round | {' | '.join(map(str, rounds.columns))} |" in text
    assert set(rounds.index) == set(NAMES)
    for algorithm, accuracies in rounds.iterrows():
        cells = ["" if pd.isna(each) else f"{each:.3f}" for each in accuracies]
        row = f"| {NAMES[str(algorithm)]} | {' | '.join(cells)} |"
        assert row.replace("|  ", "| ") in text


def test_the_second_table_is_the_leaderboards() -> None:
    results = read_csv(RESULTS / "leaderboard_cifar10" / "leaderboard.csv").set_index("method")
    assert set(results.index) == set(NAMES)
    columns = ["global accuracy", "personal accuracy", "worst tenth"]
    for method, values in results[columns].iterrows():
        cells = " | ".join(f"{value:.3f}" for value in values)
        assert f"| {NAMES[str(method)]} | {cells} |" in section()
