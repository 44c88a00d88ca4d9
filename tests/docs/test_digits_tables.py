"""The tables of the results on digits are the numbers of their files."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from generate.results import RESULTS
from support.result_pages import gain, interval, line_with, one_line, rows, section, stored

from fedexp.reporting.families import corrected

PAGE = "digits.md"
HEADER = (
    "| | global accuracy | personal, the client's distribution | "
    "personal, the client's classes weighted equally |"
)
COLUMNS = ["global/accuracy", "personal/accuracy_local", "personal/accuracy_uniform"]
SYSTEMS = {
    "FedAvg": "fedavg",
    "FedNH": "fednh",
    "FedGELA": "fedgela",
    "FedGELA, the paper's text": "fedgela_paper",
    "FedGE": "fedge",
    "FedSC": "fedsc",
}
SKEWED = {
    "FedAvg": "fedavg",
    "SCAFFOLD": "scaffold",
    "FedDyn, Algorithm 1": "feddyn_paper",
    "FedDC": "feddc",
}
PERSONAL = {
    "FedAvg": "fedavg",
    "local only": "local",
    "FedPer": "fedper",
    "FedRep": "fedrep",
    "FedBABU": "fedbabu",
    "FedROD": "fedrod",
    "Ditto": "ditto",
    "FedProto": "fedproto",
    "MOON": "moon",
    "FedNTD": "fedntd",
    "FedLC": "fedlc",
    "FedRS": "fedrs",
}
RULES = {
    "average": "aggregator=sample_weighted",
    "median": "aggregator=median",
    "trimmed mean, 0.3": "aggregator=trimmed_mean aggregator.trim=0.3",
    "norm clipped, 0.5": "aggregator=norm_clipped aggregator.norm=0.5",
    "Multi-Krum, 0.3": "aggregator=krum aggregator.byzantine=0.3",
}
AVERAGE = "faults=byzantine"
"""The average with a factor of 1, the defaults, has no other words in the file."""


@cache
def systems() -> dict[str, dict[str, list[float]]]:
    finals = stored("digits_methods")["final, by seed"]
    assert set(finals) == set(SYSTEMS.values())
    return dict(finals)


@cache
def groups(file: str) -> pd.DataFrame:
    """A report's ``groups.csv``; row names are the configurations."""
    return pd.read_csv(RESULTS / file).set_index("configuration")


def cell(file: str, configuration: str, metric: str = "global/accuracy") -> str:
    own = groups(file).loc[configuration]
    assert own["seeds"] == 3
    mean, spread = (own[f"{metric}/{statistic}"] for statistic in ("mean", "std"))
    return "" if np.isnan(mean) else f"{mean:.3f} ± {spread:.3f}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_row_of_the_systems_is_the_mean_over_their_seeds(name: str) -> None:
    table = rows(section(PAGE, "FedNH, FedGELA, FedSC"), HEADER)
    assert set(table) == set(SYSTEMS)
    values = [systems()[SYSTEMS[name]][metric] for metric in COLUMNS]
    assert table[name] == [f"{np.mean(own):.3f} ± {np.std(own, ddof=1):.3f}" for own in values]


def test_the_gains_of_the_systems_are_paired_by_seed() -> None:
    text = one_line(PAGE, "FedNH, FedGELA, FedSC")
    overall, personal, uniform = COLUMNS
    differences = {
        (method, metric): np.subtract(systems()[method][metric], systems()["fedavg"][metric])
        for method in systems()
        if method != "fedavg"
        for metric in COLUMNS
    }
    found = {key: gain(own) for key, own in differences.items()}
    sure = {key for key, own in differences.items() if interval(own).excludes_zero}
    ahead = [("fedsc", personal), ("fedsc", uniform), ("fednh", uniform), ("fedge", uniform)]
    paper = [("fedgela_paper", metric) for metric in COLUMNS]
    assert sure == {*ahead, *paper, ("fedgela", uniform)}
    assert f"{len(sure)} of {len(found)} differences have a 95 % interval" in text
    said = "FedSC personally ({}) and, where a client's classes weigh equally, FedSC ({}), FedNH"
    said += " ({}) and FedGE ({}). Behind are FedGELA where they weigh equally ({}), and FedGELA"
    said += " as its paper writes it in all three columns ({}, {} and {})"
    named = [*ahead, ("fedgela", uniform), *paper]
    assert said.format(*(found[key] for key in named)) in text
    assert f"FedSC shows no difference ({found['fedsc', overall]})" in text
    bh, _ = corrected([interval(own).p_value for own in differences.values()])
    assert [key for key, p in zip(differences, bh, strict=True) if p <= 0.05] == paper[2:]
    row = line_with((RESULTS / "README.md").read_text(), "Do the systems help on easy data?")
    for key in (*ahead[:3], ("fedgela", uniform)):
        assert f"({found[key]})" in row


@pytest.mark.parametrize("name", SKEWED)
def test_a_row_of_extreme_skew_is_that_of_the_file(name: str) -> None:
    table = rows(section(PAGE, "Extreme skew"), "| | global accuracy |")
    assert set(table) == set(SKEWED)
    assert len(groups("digits_skewed.csv")) == len(SKEWED)
    assert table[name] == [cell("digits_skewed.csv", f"algorithm={SKEWED[name]}")]


def test_feddcs_three_seeds_have_the_mean_and_the_deviation_of_the_file() -> None:
    """The file has no value of a seed, so that the three are compared with their statistics."""
    found = re.search(r"FedDC reached (.*) and (.*): it", one_line(PAGE, "Extreme skew"))
    assert found
    values = [float(each) for each in ", ".join(found.groups()).split(", ")]
    own = groups("digits_skewed.csv").loc["algorithm=feddc"]
    assert np.mean(values) == pytest.approx(own["global/accuracy/mean"], abs=0.005)
    assert np.std(values, ddof=1) == pytest.approx(own["global/accuracy/std"], abs=0.005)


@pytest.mark.parametrize("name", PERSONAL)
def test_a_row_of_personalisation_is_that_of_the_file(name: str) -> None:
    file = "digits_personalization.csv"
    text = section(PAGE, "Personalisation and local objectives")
    table = rows(text, f"{HEADER} worst decile |")
    assert set(table) == set(PERSONAL)
    metrics = [*COLUMNS, "personal/worst_decile"]
    configuration = f"algorithm={PERSONAL[name]}"
    assert table[name] == [cell(file, configuration, metric) for metric in metrics]


def test_ditto_is_best_on_a_clients_rare_classes() -> None:
    means = groups("digits_personalization.csv")["personal/accuracy_uniform/mean"]
    assert means.idxmax() == "algorithm=ditto"
    assert "has the highest mean on a client's rare classes" in one_line(
        PAGE, "Personalisation and local objectives"
    )


@pytest.mark.parametrize("name", RULES)
def test_a_row_of_byzantine_clients_is_that_of_the_file(name: str) -> None:
    text = section(PAGE, "Byzantine clients and robust aggregation")
    table = rows(text, "| aggregator | sign flipped | flipped and five times as long |")
    assert set(table) == set(RULES)
    once = f"faults=byzantine faults.factor=1 {RULES[name]}" if name != "average" else AVERAGE
    both = [once, f"faults=byzantine faults.factor=5 {RULES[name]}"]
    assert table[name] == [cell("digits_byzantine.csv", each) for each in both]


def test_without_byzantine_clients_the_average_is_that_of_the_file() -> None:
    said = f"without Byzantine clients it is {cell('digits_byzantine.csv', 'faults=none')}."
    assert said in one_line(PAGE, "Byzantine clients and robust aggregation")
