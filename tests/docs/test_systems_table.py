"""The table of systems on CIFAR-10 in the results is the numbers of its CSV file."""

import pandas as pd
from generate.results import RESULTS

TITLE = "### CIFAR-10, Dirichlet(0.3), five systems under one protocol\n"
NAMES = {
    "fedavg": "FedAvg",
    "fednh": "FedNH",
    "fedsc": "FedSC",
    "fedgela": "FedGELA",
    "fedptr_s": "FedPTR-S",
    "hics": "HiCS-FL",
}


def test_every_measured_round_stands_in_the_table() -> None:
    values = pd.read_csv(RESULTS / "cifar10_systems.csv")
    rounds = values.pivot(index="algorithm", columns="round", values="global/accuracy")
    rounds = rounds.dropna(axis="columns", how="all")
    text = (RESULTS / "README.md").read_text().partition(TITLE)[2].partition("\n### ")[0]
    assert f"| global accuracy in round | {' | '.join(map(str, rounds.columns))} |" in text
    assert set(rounds.index) == set(NAMES)
    for algorithm, accuracies in rounds.iterrows():
        cells = ["" if pd.isna(each) else f"{each:.3f}" for each in accuracies]
        row = f"| {NAMES[str(algorithm)]} | {' | '.join(cells)} |"
        assert row.replace("|  ", "| ") in text
