"""The systems under one protocol, on the results' page and in the README: gains and verdicts."""

import pandas as pd
import pytest
from generate.results import RESULTS, ROOT
from support import fednh_runs, system_runs
from support.result_pages import could_show, gain, interval, prose, published, section, table_line

from fedexp.reporting.families import corrected
from fedexp.reporting.papers.verdicts import AHEAD, BEHIND, INSIDE, NOT_SHOWN, NOT_TESTED, OUTSIDE

README = (ROOT / "README.md").read_text()
SECTION = section("cifar10_systems.md", "Three seeds")
TEXT = prose(SECTION)
NAMES = {
    "fedavg": "FedAvg",
    "fednh": "FedNH",
    "fedsc": "FedSC",
    "fedgela": "FedGELA",
    "hics": "HiCS-FL",
    "feddyn_paper": "FedDyn, Algorithm 1",
    system_runs.CONTROL: "FedAvg with FedNH's logits",
}
TESTED = {
    name: system_runs.gains(method)
    for method, name in NAMES.items()
    if method not in ("fedavg", system_runs.CONTROL)
}
PAPERS = {
    "FedNH": ("fednh", "fednh/cifar10_dir03"),
    "FedSC": ("fedsc", "fedsc/cifar10_dir02"),
    "FedGELA": ("fedgela", "fedgela/cifar10_50clients_dir02"),
    "FedPTR-S": ("fedptr_s", "fedptr/cifar10_dir004_40clients"),
}
"""System -> its method, and the preset with its paper's gain."""


def of_paper(system: str) -> float:
    """The gain in the paper's cell."""
    method, preset = PAPERS[system]
    found = published(preset)
    base = next(value for name, value in found.items() if name.startswith("fedavg"))
    return found[method] - base


def words(gains: list[float], paper: float | None) -> str:
    """The verdict."""
    if len(gains) < 3:
        return NOT_TESTED[len(gains)]
    found = interval(gains)
    shown = (AHEAD if found.mean > 0 else BEHIND) if found.excludes_zero else NOT_SHOWN
    least = "" if found.excludes_zero else f" ({could_show(found)})"
    inside = "" if paper is None else f"; {INSIDE if found.contains(paper) else OUTSIDE}"
    return shown + least + inside


def readme_row(system: str) -> list[str]:
    """The cells behind a system's name."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {system} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize("system", PAPERS)
def test_the_readme_has_each_gain_and_its_papers(system: str) -> None:
    _, ours, paper, verdict = readme_row(system)
    own, theirs = system_runs.gains(PAPERS[system][0]), of_paper(system)
    assert ours == (gain(own) if len(own) > 2 else f"{own[0]:+.3f}")
    assert paper.startswith(f"{theirs:+.3f}, ")
    assert verdict == words(own, theirs)


def test_the_paper_of_hics_counts_rounds() -> None:
    _, ours, paper, verdict = readme_row("HiCS-FL")
    own = system_runs.gains("hics")
    assert (ours, paper, verdict) == (gain(own), "rounds, not accuracy", words(own, None))


@pytest.mark.parametrize("method", NAMES)
def test_the_table_has_one_value_a_seed(method: str) -> None:
    own = system_runs.accuracies()[method]
    assert list(own.index) == [0, 1, 2]
    last = "" if method == "fedavg" else gain(system_runs.gains(method))
    cells = [*(f"{each:.3f}" for each in own), f"{own.mean():.3f}", last]
    assert table_line(NAMES[method], cells) in SECTION.splitlines()


def test_all_five_gains_survive_the_correction_of_their_family() -> None:
    _, holm = corrected([interval(own).p_value for own in TESTED.values()])
    assert (holm <= 0.05).all()
    assert f"(the largest of its p-values is {holm.max():.3f})" in TEXT


def test_fednh_is_compared_with_fedavg_that_has_its_logits() -> None:
    over = system_runs.gains("fednh", system_runs.CONTROL)
    verdict = f"it has {gain(over)}, {words(over, None)}"
    assert verdict in TEXT
    reach = interval(over).mean + interval(over).half_width
    assert f"is not shown either: the interval reaches {reach:.3f}." in TEXT
    alone = gain(system_runs.gains(system_runs.CONTROL))
    said = f"class vectors, has {alone}, and FedNH over it {gain(over)}: no difference between the"
    assert said in prose(README)
    ours, control = (system_runs.gains(each) for each in ("fednh", system_runs.CONTROL))
    more_than_half = interval([c - own / 2 for c, own in zip(control, ours, strict=True)])
    assert more_than_half.contains(0)
    assert "Whether more than half of FedNH's gain is that of the logits is not shown" in TEXT


def test_every_method_of_the_file_has_all_rounds() -> None:
    runs = pd.read_csv(RESULTS / "cifar10_systems_seeds.csv")
    assert set(runs.groupby(["algorithm", "head", "sampler", "loss", "seed"]).size()) == {10}


def first_at(method: str, target: float) -> list[int]:
    """The first evaluated round of each seed at which a method has the target."""
    curves = system_runs.curves()
    own = curves[(curves["method"] == method) & (curves["global/accuracy"] >= target)]
    return list(own.groupby("seed")["round"].min())


def test_when_hics_and_random_sampling_reach_six_tenths() -> None:
    hics, random = ("{}, {} and {}".format(*first_at(name, 0.6)) for name in ("hics", "fedavg"))
    assert f"It first has 0.6 in round {hics}, FedAvg in round {random}" in TEXT


def test_the_numbers_in_the_reasons_are_those_of_the_files() -> None:
    rounds = published("hics/cifar10_setting2", "rounds_to/0.6")
    own, random = rounds["sampler=hics_cifar10"], rounds["sampler=weighted"]
    assert f"it is at 0.6 after {own} rounds, random sampling after {random}" in TEXT
    table_1 = gain(fednh_runs.gains(fednh_runs.GLOBAL))
    (one,) = system_runs.gains("fedgela head.energy=1")
    (fedptr,) = system_runs.gains("fedptr_s")
    feddyn = system_runs.gains("feddyn_paper")
    over = {
        name: [a - b for a, b in zip(feddyn, own, strict=True)]
        for name, own in TESTED.items()
        if not name.startswith("FedDyn")
    }
    level = [n for n, own in over.items() if interval(own).half_width >= abs(interval(own).mean)]
    for said in (
        f"Table 1, {of_paper('FedNH'):+.3f}, is inside the interval",
        f"three seeds have {table_1}",
        f"nearest cell, Dirichlet(0.2), has {of_paper('FedSC'):+.3f}",
        f"ten a round, has {of_paper('FedGELA'):+.3f}, with ResNet18",
        f"With E_W = 1 seed 0 has {one:+.3f}",
        f"has seed 0 alone, below: {fedptr:+.3f}",
        f"40 clients, ten a round, has {of_paper('FedPTR-S'):+.3f}",
        f"uncorrected): {', '.join(f'{name} {gain(own)}' for name, own in over.items())}; over",
        f"over {' and '.join(level)} no difference is shown. Seeds 1 and 2 are in 32 bits",
    ):
        assert said in TEXT
    assert interval(TESTED["FedSC"]).mean > of_paper("FedSC")


def test_the_readme_names_a_better_method_and_the_papers_own_rounds() -> None:
    feddyn = gain(system_runs.gains("feddyn_paper"))
    text = prose(README)
    assert f"FedDyn, none of the five, gains {feddyn}." in text
    table_1 = gain(fednh_runs.gains(fednh_runs.GLOBAL))
    assert f"FedNH's has 200 rounds, and with them no difference is shown ({table_1})." in text
