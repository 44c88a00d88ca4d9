"""The tables of systems on CIFAR-10 in the results are the numbers of their CSV files."""

import pandas as pd
import pytest
from generate.results import RESULTS
from support.result_pages import leaderboard, prose

NAMES = {
    ("fedavg", "random", "cross_entropy"): "FedAvg",
    ("fednh", "random", "cross_entropy"): "FedNH",
    ("fedsc", "random", "rpcl_cpdr"): "FedSC",
    ("fedgela", "random", "cross_entropy"): "FedGELA, E_W = 1",
    ("fedptr_s", "random", "cross_entropy"): "FedPTR-S",
    ("hics", "hics", "cross_entropy"): "HiCS-FL",
    ("fedacg", "random", "cross_entropy"): "FedACG",
    ("feddyn_paper", "random", "cross_entropy"): "FedDyn, Algorithm 1",
    ("fednh", "hics", "cross_entropy"): "FedNH with HiCS-FL's sampler",
    ("fednh", "random", "rpcl_cpdr"): "FedNH with FedSC's loss",
}
KEYS = ["algorithm", "sampler", "loss"]
TABLES = (RESULTS / "cifar10_systems.md").read_text()
TEXT = prose(TABLES)


def systems() -> pd.DataFrame:
    return pd.read_csv(RESULTS / "cifar10_systems.csv")


def method_of(key: tuple[str, str, str]) -> str:
    """The name of a configuration in the leaderboard's file."""
    algorithm, sampler, loss = key
    if algorithm != "fednh":
        return algorithm
    options = {"sampler=hics": sampler == "hics", "loss=rpcl_cpdr": loss == "rpcl_cpdr"}
    return " ".join([algorithm, *(option for option, chosen in options.items() if chosen)])


def test_every_measured_round_stands_in_the_table() -> None:
    rounds = systems().pivot(index=KEYS, columns="round", values="global/accuracy")
    assert f"| global accuracy in round | {' | '.join(map(str, rounds.columns))} |" in TABLES
    assert set(rounds.index) == set(NAMES)
    for key, name in NAMES.items():
        cells = [f"{each:.3f}" for each in rounds.loc[key]]
        assert f"| {name} | {' | '.join(cells)} |" in TABLES


def test_the_second_table_is_the_leaderboards() -> None:
    results = leaderboard("cifar10").set_index("method")
    assert set(results.index) == set(map(method_of, NAMES))
    columns = ["global accuracy", "personal accuracy", "worst tenth"]
    last = systems().query("round == 100").set_index(KEYS)["personal/accuracy_uniform"]
    for key, name in NAMES.items():
        cells = [f"{value:.3f}" for value in (*results.loc[method_of(key), columns], last[key])]
        assert f"| {name} | {' | '.join(cells)} |" in TABLES


def fedgela_with_the_presets_scale() -> pd.DataFrame:
    """Round by metric, of the run with E_W = 10 and seed 0."""
    runs = pd.read_csv(RESULTS / "cifar10_systems_seeds.csv")
    return runs.query("algorithm == 'fedgela' and seed == 0").set_index("round")


def test_the_rows_of_fedgela_with_the_presets_scale() -> None:
    run = fedgela_with_the_presets_scale()
    curve, last = run["global/accuracy"], run.loc[100]
    assert f"| FedGELA, E_W = 10 | {' | '.join(f'{each:.3f}' for each in curve)} |" in TABLES
    local, uniform = last["personal/accuracy_local"], last["personal/accuracy_uniform"]
    start = f"| FedGELA, E_W = 10 | {curve.loc[60:].mean():.3f} | {local:.3f} | "
    assert start in TABLES
    assert f"| {uniform:.3f} |" in TABLES.partition(start)[2].partition("\n")[0]
    fedavg = systems().query("algorithm == 'fedavg'").set_index("round")
    gain = curve.loc[60:].mean() - fedavg.loc[60:, "global/accuracy"].mean()
    assert f"{gain:+.3f} over FedAvg in the mean of rounds 60 to 100" in TEXT
    of_fedavg = fedavg.loc[100, "personal/accuracy_uniform"]
    assert f"and {uniform:.3f} ({of_fedavg:.3f}) where a client's classes weigh equally" in TEXT


def over_fedavg() -> pd.DataFrame:
    """Method by round: its global accuracy less FedAvg's."""
    accuracies = systems().pivot(index=KEYS, columns="round", values="global/accuracy")
    accuracies.index = [NAMES[key] for key in accuracies.index]
    return accuracies - accuracies.loc["FedAvg"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FedNH", "FedNH is ahead of FedAvg at all ten evaluations (by {} to {})"),
        ("FedSC", "FedSC too (by {} to {})"),
        ("FedDyn, Algorithm 1", "ahead of FedAvg at all ten evaluations (by {} to {}); FedACG"),
    ],
)
def test_who_is_ahead_at_all_evaluations_and_by_how_much(name: str, said: str) -> None:
    gains = over_fedavg().loc[name]
    assert (gains > 0).all()
    assert said.format(f"{gains.min():.3f}", f"{gains.max():.3f}") in TEXT


@pytest.mark.parametrize("name", ["HiCS-FL", "FedACG"])
def test_who_is_ahead_at_nine_evaluations(name: str) -> None:
    assert "and HiCS-FL at nine: its curve" in TEXT
    assert "FedACG is ahead at nine." in TEXT
    assert (over_fedavg().loc[name] > 0).sum() == 9


def test_two_combinations_are_ahead_of_fedavg_at_all_evaluations() -> None:
    combined = [name for name in NAMES.values() if " with " in name]
    assert len(combined) == 2
    assert (over_fedavg().loc[combined] > 0).all(axis=None)
    assert "**Two combinations** are ahead of FedAvg at all evaluations" in TEXT


def test_two_combinations_are_ahead_of_their_parts_globally_but_not_personally() -> None:
    results = leaderboard("cifar10").set_index("method")
    overall, personal = (
        results[column].astype(float) for column in ("global accuracy", "personal accuracy")
    )
    hics, loss = "fednh sampler=hics", "fednh loss=rpcl_cpdr"
    assert overall[hics] > overall[["fednh", "hics"]].max()
    assert overall[loss] > overall[["fednh", "fedsc"]].max()
    assert personal[hics] < personal[["fednh", "hics"]].max()
    assert personal[loss] < personal[["fednh", "fedsc"]].max()
    said = (
        f"FedNH with HiCS-FL's sampler ({overall[hics]:.3f}; FedNH {overall['fednh']:.3f}, HiCS-FL "
        f"{overall['hics']:.3f}) and FedNH with FedSC's loss ({overall[loss]:.3f}; FedSC "
        f"{overall['fedsc']:.3f}). Personally they are not ({personal[hics]:.3f} and "
        f"{personal[loss]:.3f}; FedNH {personal['fednh']:.3f}, FedSC {personal['fedsc']:.3f})."
    )
    assert said in TEXT


def test_fedgela_is_lowest_personally_above_all_in_rare_classes() -> None:
    uniform = systems().query("round == 100").set_index("algorithm")["personal/accuracy_uniform"]
    assert uniform.idxmin() == "fedgela"
    fedavg = uniform["fedavg"]
    assert f"it has {uniform['fedgela']:.3f} and FedAvg {fedavg:.3f}." in TEXT


def test_the_curve_of_hics_swings_most() -> None:
    curves = systems().pivot(index=KEYS, columns="round", values="global/accuracy")
    last = curves.loc[("hics", "hics", "cross_entropy"), [90, 100]]
    said = "its curve swings most, from {:.3f} in round 90 to {:.3f} in round 100."
    assert said.format(*last) in TEXT
    falls = curves.diff(axis=1).min(axis=1)
    assert falls.idxmin() == ("hics", "hics", "cross_entropy")


def test_how_near_fedptr_is_to_fedavg() -> None:
    assert "FedPTR-S lies within 0.02 of FedAvg at all evaluations" in TEXT
    assert (over_fedavg().loc["FedPTR-S"].abs() < 0.02).all()
    results = leaderboard("cifar10").set_index("method")
    personal = results["personal accuracy"].astype(float)
    less = personal["fedavg"] - personal["fedptr_s"]
    said = f"and its clients' latest models are {less:.3f} less accurate"
    assert said in TEXT


def test_fedgela_is_behind_from_round_30_on() -> None:
    behind = over_fedavg().loc["FedGELA, E_W = 1"] < 0
    assert behind.loc[30:].all()
    assert not behind[20]
    assert "FedGELA with E_W = 1 is behind from round 30 on" in TEXT


@pytest.mark.parametrize("energy", [10, 30])
def test_a_larger_scale_is_ahead_at_all_five_evaluations(energy: int) -> None:
    runs = pd.read_csv(RESULTS / "cifar10_fedgela_energy.csv")
    own = runs[runs["head.energy"] == energy].set_index("round")["global/accuracy"]
    fedavg = systems().query("algorithm == 'fedavg'").set_index("round")["global/accuracy"]
    assert "of 10 or 30 FedGELA is ahead of FedAvg at all five evaluations" in TEXT
    assert list(own.index) == [10, 20, 30, 40, 50]
    assert (own > fedavg[own.index]).all()


@pytest.mark.parametrize(
    ("row", "method"), [("E_W = 1, then the preset", "fedgela"), ("FedAvg", "fedavg")]
)
def test_the_table_of_scales_repeats_two_curves(row: str, method: str) -> None:
    curve = systems().query("algorithm == @method").set_index("round")["global/accuracy"]
    table = TABLES.partition("| global accuracy in round, FedGELA |")[2].partition("\n\n")[0]
    cells = [f"{curve[each]:.3f}" for each in (10, 20, 30, 40, 50)]
    assert f"| {row} | {' | '.join(cells)} |" in table.splitlines()
