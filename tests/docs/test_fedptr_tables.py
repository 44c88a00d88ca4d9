"""The figures of FedPTR's page are those of its file, and of the paper's numbers in the preset."""

import math

import numpy as np
import pytest
import yaml
from generate.results import RESULTS, ROOT
from support.result_pages import (
    body,
    curve,
    lines_by_round,
    one_line,
    published,
    runs,
    section,
    table_line,
)

PAGE, SMALL = "fedptr.md", "Fashion-MNIST, Dirichlet(0.01), small"
PULL = "Where FedPTR's pull decides: partition and network"
ROUNDS = (5, 10, 15, 19, 23, 60)
METHODS = {
    "FedAvg, as released": "algorithm=fedavg",
    "SCAFFOLD, as released": "evaluation.personal_every=60 algorithm=scaffold",
    "FedDyn, as released": "algorithm=feddyn",
    "FedDC, as released": "algorithm=feddc",
    "FedAvg, momentum 0.5": "algorithm=fedavg optimizer.momentum=0.5",
    "FedPTR-S, momentum 0.5": "algorithm=fedptr_s",
}
BASELINES = {"SCAFFOLD": "scaffold", "FedDyn": "feddyn", "FedDC": "feddc"}


def of(name: str) -> dict[int, float]:
    return curve(runs("fmnist_fedptr")[METHODS[name]])


def last_five(name: str) -> float:
    """The mean of the last five of the 60 rounds."""
    return float(np.mean([of(f"{name}, as released")[round] for round in range(56, 61)]))


def papers() -> dict[str, float]:
    return published("fedptr/fmnist_dir001")


@pytest.mark.parametrize("name", METHODS)
def test_a_row_is_a_run_of_the_file(name: str) -> None:
    table = body(section(PAGE, SMALL), table_line("global accuracy in round", ROUNDS))
    assert len(table) == len(METHODS)
    curves = {each: of(each) for each in METHODS}
    assert lines_by_round(curves, ROUNDS, bold=True)[name] in table


def test_the_cell_is_that_of_the_overrides() -> None:
    text = one_line(PAGE, SMALL)
    said = "ConvNet with 32 filters, 10,000 images, batch 80, every client at least 416 images"
    assert said in text
    own = {"model.width=32", "data.subset=10000", "local.batch_size=80", "partition.min_size=416"}
    for run in runs("fmnist_fedptr").values():
        assert own <= set(run["overrides"])
    rounds = max(of("FedPTR-S, momentum 0.5"))
    assert f"FedPTR-S was stopped after {rounds} rounds" in text


def test_at_equal_momentum_fedptr_is_ahead_in_each_round_of_the_table() -> None:
    ours, plain = of("FedPTR-S, momentum 0.5"), of("FedAvg, momentum 0.5")
    gains = [ours[round] - plain[round] for round in ROUNDS if round in ours]
    paper = papers()
    said = f"ahead of FedAvg by {min(gains):.3f} to {max(gains):.3f} in each of these rounds"
    assert said in one_line(PAGE, SMALL)
    said = f"in the paper {paper['fedptr_s']:.4f} against {paper['fedavg']:.4f} at full size"
    assert said in one_line(PAGE, SMALL)


def test_fedavg_without_momentum_is_lower() -> None:
    plain, momentum = of("FedAvg, as released"), of("FedAvg, momentum 0.5")
    below = [momentum[round] - plain[round] for round in ROUNDS if round in momentum]
    said = f"FedAvg without momentum is {min(below):.2f} to {max(below):.2f} below FedAvg with it"
    assert said in one_line(PAGE, SMALL)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_ahead_at_first_swings_and_ends_behind(name: str) -> None:
    plain, ours = of("FedAvg, as released"), of(f"{name}, as released")
    assert ours[5] > plain[5]
    assert max(abs(ours[round] - ours[round - 1]) for round in range(2, 61)) >= 0.1
    text = one_line(PAGE, SMALL)
    assert "swing by 0.1 and more from round to round" in text
    assert "behind it in the mean of the last five of the 60 rounds" in text
    assert last_five(name) < last_five("FedAvg")
    assert f"FedAvg {last_five('FedAvg'):.3f}, " in text
    assert f" {name} {last_five(name):.3f}" in text
    assert f"({papers()[BASELINES[name]]:.4f})" in text


def test_the_level_is_below_the_papers() -> None:
    below = papers()["fedavg"] - last_five("FedAvg")
    said = f"FedAvg's level is {below:.2f} below the paper's, after 60 of 200 rounds"
    assert max(of("FedAvg, as released")) == 60
    assert said in one_line(PAGE, SMALL)


def test_the_pull_follows_from_its_strength_and_the_number_of_layers() -> None:
    preset = yaml.safe_load((ROOT / "conf" / "regularizer" / "trajectory.yaml").read_text())
    tensors, modules, weights = (preset["lam"] * math.sqrt(count) for count in (14, 7, 4))
    text = one_line(PAGE, PULL)
    assert f"({preset['lam']} for each tensor, together {tensors:.2f} on the ConvNet" in text
    assert "Over the ConvNet's 14 tensors, 7 modules or 4 weights" in text
    assert f"the pull is {tensors:.3f}, {modules:.3f} or {weights:.3f} together" in text


def test_what_is_said_of_the_gradients_follows_from_their_table() -> None:
    """No file holds this table; its sentences and the answer among the results repeat it."""
    text, answers = one_line(PAGE, PULL), (RESULTS / "README.md").read_text()
    corner = "| first step, rounds 1 to 5 | last step | below the pull |"
    lines = body(section(PAGE, PULL), corner)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    medians = [float(each) for each in cells[0][5].split(", ")]
    assert f"the median last step, {min(medians):.2f} to {max(medians):.2f}, is longer" in text
    plain = [row for row in cells if row[1] == "plain Dirichlet"]
    assert {row[3] for row in plain} == {"6"}
    assert max(int(each) for row in plain for each in row[6].split(", ")) == 2
    assert "two of six at most end below the pull" in text
    assert "with a plain Dirichlet partition in two of six at most" in answers
