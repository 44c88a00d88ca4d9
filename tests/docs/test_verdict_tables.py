"""The table beside the papers: gains are those of the files, and verdicts follow from them."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from generate.results import RESULTS
from support import fedgela_runs, fednh_runs, hics_runs
from support.fedgela_runs import BEST, GLOBAL, PERSONAL
from support.hics_runs import ALL, SIX, accuracy, delays, first
from support.result_pages import could_show, filled, gain, interval, published, section, stored

from fedexp.reporting.interval import Interval
from fedexp.reporting.papers.verdicts import AHEAD, INSIDE, NOT_SHOWN, OUTSIDE

_GAIN = re.compile(r"([+-][\d.]+) ± ([\d.]+)")
CORNER = "| paper | cell | size here | seeds | gain, paper | gain, ours | verdict | numbers |"
BESIDE = filled(section("README.md", "Beside the papers"), CORNER)
FIVE = (0, 1, 2, 3, 5)
"""The seeds in which both samplers reach 0.75."""


def typed() -> Iterator[tuple[Interval, float, str]]:
    """(Our gain, the paper's gain, the verdict) of each tested row."""
    for _, _, _, seeds, paper, ours, verdict, _ in BESIDE:
        if (found := _GAIN.search(ours)) and "not given" not in paper:
            n = 5 if "five seeds" in ours else int(seeds)
            yield Interval(float(found[1]), float(found[2]), n), float(paper), verdict


def test_each_verdict_has_the_words_of_its_interval() -> None:
    found = list(typed())
    assert len(found) == 9
    for gain_, paper, verdict in found:
        assert (AHEAD if gain_.excludes_zero else NOT_SHOWN) in verdict
        assert (INSIDE if gain_.contains(paper) else OUTSIDE) in verdict


CLUSTERED = delays(0.75, range(3), "clustered")
TESTED = {
    ("FedNH, Table 1", "CIFAR-10, Dir(0.3), global"): fednh_runs.gains(GLOBAL),
    ("FedNH, Table 1", "PM(V)"): fednh_runs.gains("personal/accuracy_uniform"),
    ("FedNH, Table 1", "PM(L)"): fednh_runs.gains("personal/accuracy_local"),
    ("FedGELA, Table 5", "CIFAR-10, two classes a client, global"): fedgela_runs.gains(
        "two classes", BEST
    ),
    ("FedGELA, Table 5", "personal"): fedgela_runs.gains("two classes", PERSONAL),
    ("FedGELA, Table 2", "CIFAR-10, Dir(0.1), global"): fedgela_runs.gains("Dirichlet(0.1)", BEST),
    ("FedGELA, Table 2", "personal"): fedgela_runs.gains("Dirichlet(0.1)", PERSONAL),
    ("HiCS-FL, Table 1", "mean accuracy of all 200 rounds"): hics_runs.gains(ALL, SIX),
}
"""(Paper, cell) -> gains in accuracy, one a seed."""


def row(paper: str, cell: str) -> list[str]:
    """The other cells of a row of the table beside the papers; links are their words."""
    found = {(each[0], re.sub(r"\[(.*?)\]\(.*?\)", r"\1", each[1])): each[2:] for each in BESIDE}
    return found[paper, cell]


@pytest.mark.parametrize("key", TESTED, ids=", ".join)
def test_a_gain_is_that_of_its_file(key: tuple[str, str]) -> None:
    _, seeds, _, ours, verdict, _ = row(*key)
    own = TESTED[key]
    assert int(seeds) == len(own)
    assert ours.partition(" (")[0] == gain(own)
    if NOT_SHOWN in verdict:
        assert could_show(interval(own)) in verdict
        same = all(each > 0 for each in own)
        assert ("ahead with all seeds" in verdict) == same


def test_the_gains_in_rounds_are_those_of_their_file() -> None:
    _, _, _, ours, verdict, _ = row(
        "HiCS-FL, Table 1", "Fashion-MNIST, setting (2), rounds to 0.75, raw"
    )
    five, six = delays(0.75, FIVE), delays(0.75, SIX)
    random = first(accuracy(2, "weighted", 4), 0.75)
    assert first(accuracy(2, "hics", 4), 0.75) is None
    assert ours == (
        f"{gain(five, 0)} in the five seeds that reach it; {gain(six, 0)} with the sixth, which "
        f"counts with the 200 rounds that HiCS-FL ran (random: {random})"
    )
    second = could_show(interval(six)).removeprefix("could show ")
    assert f"({could_show(interval(five))} and {second})" in verdict
    _, _, _, ours, verdict, _ = row("HiCS-FL, Table 1", "clustered sampling, raw")
    assert ours == gain(CLUSTERED, 0)
    assert could_show(interval(CLUSTERED)) in verdict


PUBLISHED = {
    "FedNH, Table 1": [
        ("fednh/cifar10_dir03", metric, "fednh", "fedavg")
        for metric in (GLOBAL, "personal/accuracy_uniform", "personal/accuracy_local")
    ],
    "FedPTR, Table 1": [
        ("fedptr/fmnist_dir001", GLOBAL, name, "fedavg")
        for name in ("fedptr_s", "scaffold", "feddyn", "feddc")
    ],
    "FedSC, Table 1": [("fedsc/cifar10_dir02", GLOBAL, "fedsc", "fedavg")],
}


@pytest.mark.parametrize("paper", PUBLISHED)
def test_a_papers_gain_is_that_of_its_preset(paper: str) -> None:
    values = [
        (published(preset, metric), own, base) for preset, metric, own, base in PUBLISHED[paper]
    ]
    gains = [f"{found[own] - found[base]:+.3f}" for found, own, base in values]
    assert [each[4] for each in BESIDE if each[0] == paper] == gains


def test_the_papers_gains_of_fedgela_are_those_of_its_presets() -> None:
    for paper, cell in (
        ("FedGELA, Table 5", "two classes"),
        ("FedGELA, Table 2", "Dirichlet(0.1)"),
    ):
        gains = [f"{fedgela_runs.papers_gain(cell, metric):+.3f}" for metric in (GLOBAL, PERSONAL)]
        assert [each[4] for each in BESIDE if each[0] == paper] == gains


def test_the_papers_gains_in_rounds_are_those_of_the_preset() -> None:
    paper = published("hics/fmnist_setting2", "rounds_to/0.75")
    random = paper["sampler=weighted"]
    own = {name: f"{paper[f'sampler={name}'] - random:+.0f}" for name in
           ("hics", "clustered", "power_of_choice_ideal", "divfl_ideal")}  # fmt: skip
    order = [own["hics"], "not given", own["clustered"], *[own["power_of_choice_ideal"]] * 2]
    assert [each[4] for each in BESIDE if each[0] == "HiCS-FL, Table 1"] == [
        *order,
        own["divfl_ideal"],
    ]
    plain = row("HiCS-FL, Figure 2", "setting (2), plain SGD, raw")
    network = row("HiCS-FL, Figure 2", "setting (2), another network, plain SGD, raw")
    assert plain[2] == network[2] == own["hics"]


def curve(file: str, **options: str) -> dict[str, float]:
    """The curve of the run of a file with these options among its overrides."""
    asked = {f"{key.replace('__', '.')}={value}" for key, value in options.items()}
    (found,) = (each[GLOBAL] for each in stored(file) if set(each["overrides"]) >= asked)
    values: dict[str, float] = found
    return values


def plain_gain(algorithm: str) -> str:
    """The gain over FedAvg, both without momentum, in the mean of the last five of 60 rounds."""
    own, base = (
        np.mean(list(next(
            each[GLOBAL] for each in stored("fmnist_fedptr")
            if f"algorithm={name}" in each["overrides"]
            and not any(word.startswith("optimizer.") for word in each["overrides"])
        ).values())[-5:])
        for name in (algorithm, "fedavg")
    )  # fmt: skip
    return f"{own - base:+.3f}"


def fedptr_gain() -> str:
    own = curve("fmnist_fedptr", algorithm="fedptr_s")["19"]
    base = curve("fmnist_fedptr", algorithm="fedavg", optimizer__momentum="0.5")["19"]
    return f"{own - base:+.3f}"


def fedsc_gain() -> str:
    """The gain in the best of 60 rounds."""
    own, base = (
        max(curve("cifar10_fedsc", algorithm=name, rounds="60").values())
        for name in ("fedsc", "fedavg")
    )
    return f"{own - base:+.3f}"


def raw(setting: int, sampler: str, seed: int = 0) -> int:
    """Rounds to 0.75 more than random sampling."""
    own, random = (first(accuracy(setting, name, seed), 0.75) for name in (sampler, "weighted"))
    return (own or 0) - (random or 0)


def test_the_rows_of_one_seed_on_fedptr_and_fedsc() -> None:
    assert [each[5] for each in BESIDE if each[0] == "FedPTR, Table 1"] == [
        f"{fedptr_gain()}, both with momentum 0.5, in round 19",
        *map(plain_gain, ("scaffold", "feddyn", "feddc")),
    ]
    assert [each[5] for each in BESIDE if each[0] == "FedSC, Table 1"] == [
        f"{fedsc_gain()}, best of 60"
    ]


def test_the_rows_of_one_seed_on_other_samplers() -> None:
    paper = "HiCS-FL, Table 1"
    rows_ = {
        "power of choice, asks all clients, raw": "power_of_choice_ideal",
        "power of choice, asks 2K clients, raw": "power_of_choice",
        "DivFL with the gradients of all clients, raw": "divfl_ideal",
    }
    for cell, sampler in rows_.items():
        assert row(paper, cell)[3] == f"{raw(2, sampler):+d}"
    own = first(accuracy(2, "power_of_choice", 0), 0.75)
    others = [first(accuracy(2, "weighted", seed), 0.75) for seed in (1, 2)]
    said = "{:+d} and {:+d} against the other two seeds".format(
        *((own or 0) - (n or 0) for n in others)
    )
    assert said in row(paper, "power of choice, asks 2K clients, raw")[4]


def test_the_rows_of_one_seed_on_hics_in_figure_2() -> None:
    paper = "HiCS-FL, Figure 2"
    assert row(paper, "setting (1), raw")[3] == f"{raw(1, 'hics'):+d}"
    names = ("hics", "clustered", "weighted")
    means = [np.mean(accuracy(3, name, 0)) for name in names]
    said = "{:.3f}, clustered {:.3f}, random {:.3f}".format(*means)
    assert row(paper, "setting (3), mean accuracy of all 200 rounds")[3] == said
    kept = np.mean(accuracy(3, "hics, optimizer kept", 0))
    cell = "setting (3), each client keeps its optimizer, as released"
    assert row(paper, cell)[3] == f"{kept:.3f}"
    plain = [accuracy(2, f"{name}, plain SGD", 0) for name in ("hics", "weighted")]
    assert not any(first(each, 0.75) for each in plain)
    said = "0.75 reached by neither; 0.70 after {} rounds, random {}"
    said = said.format(*(first(each, 0.7) for each in plain))
    assert row(paper, "setting (2), plain SGD, raw")[3] == said


def test_the_row_of_one_seed_on_another_network() -> None:
    runs = {each["name"]: each[GLOBAL] for each in stored("hics_fmnist_batchnorm")["runs"]}
    own, random = (first(runs[name], 0.75) or 0 for name in ("hics", "weighted"))
    smooth, smooth_random = (
        first(hics_runs.smoothed(runs[f"{name}, momentum"]), 0.75) or 0
        for name in ("hics", "weighted")
    )
    cell = "setting (2), another network, plain SGD, raw"
    _, _, _, ours, verdict, _ = row("HiCS-FL, Figure 2", cell)
    assert ours == f"{own - random:+d}"
    assert f"{smooth - smooth_random:+d} with momentum, smoothed" in verdict


def test_one_of_the_eight_tested_gains_excludes_zero() -> None:
    tested = [*(own for (_, cell), own in TESTED.items() if "all 200 rounds" not in cell)]
    shown = [own for own in [*tested, delays(0.75, FIVE)] if interval(own).excludes_zero]
    assert shown == [fedgela_runs.gains("two classes", BEST)]
    assert len(tested) + 1 == 8
    said = "of eight gains that were tested one has an interval without 0"
    assert said in (RESULTS / "README.md").read_text()
