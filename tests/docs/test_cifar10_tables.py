"""The tables of systems on CIFAR-10 in the results are the numbers of their CSV files."""

import pandas as pd
from generate.results import RESULTS, ROOT

from fedexp.reporting.leaderboard.files import read_csv

NAMES = {
    ("fedavg", "random", "cross_entropy"): "FedAvg",
    ("fednh", "random", "cross_entropy"): "FedNH",
    ("fedsc", "random", "rpcl_cpdr"): "FedSC",
    ("fedgela", "random", "cross_entropy"): "FedGELA",
    ("fedptr_s", "random", "cross_entropy"): "FedPTR-S",
    ("hics", "hics", "cross_entropy"): "HiCS-FL",
    ("fedacg", "random", "cross_entropy"): "FedACG",
    ("feddyn_paper", "random", "cross_entropy"): "FedDyn, Algorithm 1",
    ("fednh", "hics", "cross_entropy"): "FedNH with HiCS-FL's sampler",
    ("fednh", "random", "rpcl_cpdr"): "FedNH with FedSC's loss",
}
KEYS = ["algorithm", "sampler", "loss"]


def systems() -> pd.DataFrame:
    return pd.read_csv(RESULTS / "cifar10_systems.csv")


def method_of(key: tuple[str, str, str]) -> str:
    """The name of a configuration in the leaderboard's file."""
    algorithm, sampler, loss = key
    if algorithm != "fednh":
        return algorithm
    options = {"sampler=hics": sampler == "hics", "loss=rpcl_cpdr": loss == "rpcl_cpdr"}
    return " ".join([algorithm, *(option for option, chosen in options.items() if chosen)])


def section() -> str:
    return (RESULTS / "cifar10_systems.md").read_text()


def test_every_measured_round_stands_in_the_table() -> None:
    rounds = systems().pivot(index=KEYS, columns="round", values="global/accuracy")
    text = section()
    assert f"| global accuracy in round | {' | '.join(map(str, rounds.columns))} |" in text
    assert set(rounds.index) == set(NAMES)
    for key, name in NAMES.items():
        cells = [f"{each:.3f}" for each in rounds.loc[key]]
        assert f"| {name} | {' | '.join(cells)} |" in text


def test_the_second_table_is_the_leaderboards() -> None:
    results = read_csv(RESULTS / "leaderboard_cifar10" / "leaderboard.csv").set_index("method")
    assert set(results.index) == set(map(method_of, NAMES))
    columns = ["global accuracy", "personal accuracy", "worst tenth"]
    last = systems().query("round == 100").set_index(KEYS)["personal/accuracy_uniform"]
    for key, name in NAMES.items():
        cells = [f"{value:.3f}" for value in (*results.loc[method_of(key), columns], last[key])]
        assert f"| {name} | {' | '.join(cells)} |" in section()


def test_the_readme_has_the_gains_under_one_protocol() -> None:
    results = read_csv(RESULTS / "leaderboard_cifar10" / "leaderboard.csv").set_index("method")
    accuracies = results["global accuracy"].astype(float)
    names = {"FedNH": "fednh", "FedGELA": "fedgela", "FedSC": "fedsc", "FedPTR": "fedptr_s"}
    table = (ROOT / "README.md").read_text().partition("\n| system |")[2].partition("\n\n")[0]
    for name, method in (names | {"HiCS-FL": "hics"}).items():
        (row,) = (line for line in table.splitlines() if line.startswith(f"| {name} |"))
        assert row.endswith(f"| {accuracies[method] - accuracies['fedavg']:+.3f} |")
