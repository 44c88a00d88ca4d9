"""The figures of FedSC's page are those of its files, and of the paper's numbers in the preset."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from generate.results import RESULTS
from support.result_pages import (
    NOT_RUN,
    body,
    bold_best,
    by_seed,
    curve,
    gain,
    line_with,
    lines_by_round,
    one_line,
    published,
    runs,
    section,
    table_line,
)

from fedexp.reporting.interval import Interval, smallest_gain
from fedexp.reporting.papers.verdicts import NOT_SHOWN

PAGE = "fedsc.md"
SMALL = "Fashion-MNIST and CIFAR-10, NID1(0.2), small"
BEHIND = "Why FedSC falls behind on a small network"
REPAIR = "FedSC with a contrast that does not depend on lengths"

FASHION = {
    "FedAvg": "algorithm=fedavg",
    "FedSC": "algorithm=fedsc",
    "RPCL alone": "algorithm=fedsc loss.cpdr_weight=0",
    "FedSC, tau 0.5": "algorithm=fedsc loss.temperature=0.5",
    "CPDR alone": "algorithm=fedsc loss.rpcl_weight=0",
}
_LENET = "data.subset=10000 model=simple_cnn local.epochs=5"
CIFAR10 = {
    "FedAvg": f"{_LENET} rounds=60 algorithm=fedavg",
    "FedSC": f"{_LENET} rounds=60 algorithm=fedsc",
    "FedSC, tau 0.5": f"{_LENET} algorithm=fedsc loss.temperature=0.5 rounds=40",
}
_CONV2CIFAR = "data.subset=5000 model=conv2cifar local.epochs=2 rounds=40"
CONV2CIFAR = {
    "FedAvg": f"{_CONV2CIFAR} algorithm=fedavg",
    "FedSC": f"{_CONV2CIFAR} algorithm=fedsc",
}
FASHION_ROUNDS = (2, 5, 10, 15, 20, 30, 40, 50)
CIFAR10_ROUNDS = (2, 5, 10, 15, 20, 25, 40, 60)

Cell = tuple[str, int, int]
"""Data, images, rounds."""
FASHION_3000: Cell = ("fashion_mnist", 3000, 10)
FASHION_5000: Cell = ("fashion_mnist", 5000, 15)
IMAGES_5000: Cell = ("image_folder", 5000, 15)

Setting = tuple[str, ...]
"""The overrides of an algorithm and its loss."""
FEDAVG: Setting = ("algorithm=fedavg",)
RELEASED: Setting = ("algorithm=fedsc_released",)


def paper(temperature: float) -> Setting:
    """FedSC with the paper's contrast."""
    return (*RELEASED, f"loss.temperature={temperature}")


def unit(temperature: float) -> Setting:
    return (*RELEASED, "loss.normalizer=unit", f"loss.temperature={temperature}")


FASHION_SETTINGS = {
    "FedAvg": FEDAVG,
    "FedSC, temperature 0.05": RELEASED,
    "FedSC, temperature 1": paper(1),
    "FedSC, temperature 8": paper(8),
    "FedSC, `normalizer=unit`, temperature 2": unit(2),
    "FedSC, `normalizer=unit`, temperature 4": unit(4),
}
IMAGES_SETTINGS = {
    "FedAvg": FEDAVG,
    "FedSC, temperature 0.05": RELEASED,
    "FedSC, temperature 1": paper(1),
    "FedSC, `normalizer=unit`, temperature 1": unit(1),
}
GAINS = [
    (
        "Fashion-MNIST: `unit` 4 over the paper's contrast 8, both as chosen",
        FASHION_3000,
        unit(4),
        paper(8),
    ),
    ("the paper's contrast 8 over FedAvg", FASHION_3000, paper(8), FEDAVG),
    ("`unit` 4 over FedAvg", FASHION_3000, unit(4), FEDAVG),
    ("FedSC 0.05 over FedAvg", FASHION_3000, RELEASED, FEDAVG),
    (
        "CIFAR-10: `unit` 1 over the paper's contrast 1, both as chosen",
        IMAGES_5000,
        unit(1),
        paper(1),
    ),
    ("the paper's contrast 1 over FedAvg", IMAGES_5000, paper(1), FEDAVG),
    ("`unit` 1 over FedAvg", IMAGES_5000, unit(1), FEDAVG),
    ("FedSC 0.05 over FedAvg", IMAGES_5000, RELEASED, FEDAVG),
]
GRIDS = {
    "Fashion-MNIST, `unit`": (FASHION_5000, unit),
    "Fashion-MNIST, the paper's contrast": (FASHION_5000, paper),
    "CIFAR-10, `unit`": (IMAGES_5000, unit),
    "CIFAR-10, the paper's contrast": (IMAGES_5000, paper),
}
TEMPERATURES = (0.5, 1, 2, 4, 8, 16)
LAST_OF_CIFAR10 = 4
"""CIFAR-10's grid ends at this temperature."""

GRADIENTS = ["Fashion-MNIST, LeNet-5", "CIFAR-10, LeNet-5", "CIFAR-10, ResNet10 of the paper"]
"""The networks, in the order of the file and of the page."""
RPCL = [f"RPCL, {each}" for each in ("batch", "dataset", "none", "unit")]
COLUMNS = ["length of z", *RPCL, "CPDR, mse", "CPDR, l1"]


def fashion(name: str) -> dict[int, float]:
    return curve(runs("fmnist_fedsc")[FASHION[name]])


def cifar10(name: str) -> dict[int, float]:
    return curve(runs("cifar10_fedsc")[CIFAR10[name]])


def ahead_by(ours: dict[int, float], plain: dict[int, float]) -> dict[int, float]:
    """Round -> difference, in the rounds that both have."""
    return {round: value - plain[round] for round, value in ours.items() if round in plain}


@cache
def unit_file() -> Any:
    return json.loads((RESULTS / "fedsc_unit.json").read_text())


def run_of(cell: Cell, setting: Setting, seed: int) -> dict[str, Any]:
    """The only run of the file with these overrides and no others of the loss."""
    data, images, rounds = cell
    own = {*setting, f"data={data}", f"data.subset={images}", f"rounds={rounds}", f"seed={seed}"}
    (found,) = (
        run
        for run in unit_file()["runs"]
        if own <= set(run["overrides"])
        and not any(each.startswith("loss.") for each in set(run["overrides"]) - own)
    )
    return dict(found)


def of_seeds(cell: Cell, setting: Setting, round: int) -> list[float]:
    return [curve(run_of(cell, setting, seed))[round] for seed in range(3)]


def differences(cell: Cell, ours: Setting, plain: Setting) -> list[float]:
    """In the last round, paired by seed."""
    pairs = zip(*(of_seeds(cell, each, cell[2]) for each in (ours, plain)), strict=True)
    return [own - other for own, other in pairs]


def verdict(values: Sequence[float]) -> str:
    """The page's words for differences of paired seeds, from their interval as it is shown."""
    half = float(gain(values).partition(" ± ")[2])
    found = Interval(float(np.mean(values)), half, len(values))
    if found.excludes_zero:
        return "ahead" if found.mean > 0 else "behind"
    words = f"{NOT_SHOWN} (could show {smallest_gain(found):.3f})"
    if min(values) > 0:
        return f"{words}; ahead with all seeds"
    return f"{words}; behind with all seeds" if max(values) < 0 else words


def gradients(network: str) -> list[dict[str, float]]:
    """What the file holds of the rounds that the page shows."""
    stored = unit_file()["gradients"][GRADIENTS.index(network)]["rounds"]
    return [dict(each) for each in stored if each["round"] != 3]


def of_networks(networks: Sequence[str], *columns: str) -> list[float]:
    return [row[name] for network in networks for row in gradients(network) for name in columns]


def rounds_to(typed: str, value: float) -> bool:
    """Whether the typed digits are the value's; at a tie both neighbours are."""
    unit = 10.0 ** -len(typed.partition(".")[2])
    return abs(float(typed) - value) <= unit / 2 + 1e-9


@pytest.mark.parametrize("name", FASHION)
def test_a_row_of_fashion_mnist_is_a_run_of_its_file(name: str) -> None:
    table = body(
        section(PAGE, SMALL), table_line("Fashion-MNIST, global accuracy in round", FASHION_ROUNDS)
    )
    assert len(table) == len(FASHION)
    curves = {each: fashion(each) for each in FASHION}
    assert lines_by_round(curves, FASHION_ROUNDS, bold=True)[name] in table


@pytest.mark.parametrize("name", CIFAR10)
def test_a_row_of_cifar10_is_a_run_of_its_file(name: str) -> None:
    table = body(
        section(PAGE, SMALL), table_line("CIFAR-10, global accuracy in round", CIFAR10_ROUNDS)
    )
    assert len(table) == len(CIFAR10)
    curves = {each: cifar10(each) for each in CIFAR10}
    assert lines_by_round(curves, CIFAR10_ROUNDS, bold=True)[name] in table


@pytest.mark.parametrize(
    ("title", "said", "files"),
    [
        (SMALL, "10,000 images, LeNet-5, five local epochs", (FASHION, CIFAR10)),
        (BEHIND, "In 5,000 images with `conv2cifar` and two local epochs", (CONV2CIFAR,)),
    ],
)
def test_a_cell_is_that_of_the_overrides(
    title: str, said: str, files: tuple[dict[str, str], ...]
) -> None:
    assert said in one_line(PAGE, title)
    own = _LENET if title == SMALL else _CONV2CIFAR.removesuffix(" rounds=40")
    stored = runs("fmnist_fedsc") | runs("cifar10_fedsc")
    for name in (each for names in files for each in names.values()):
        assert set(own.split()) <= set(stored[name]["overrides"])


def test_on_fashion_mnist_fedsc_is_ahead_but_for_two_rounds() -> None:
    ahead = ahead_by(fashion("FedSC"), fashion("FedAvg"))
    behind = [round for round in range(5, 41) if ahead[round] <= 0]
    assert len(behind) == 2
    text = one_line(PAGE, SMALL)
    assert "ahead of FedAvg from round 5 to 40 but for two rounds" in text
    papers = published("fedsc/cifar10_dir02")
    said = f"{papers['fedsc']:.3f} against {papers['fedavg']:.3f} at the end) and level at the end"
    assert said in text
    assert abs(ahead[50]) < 0.002
    for name in ("CPDR alone", "FedSC, tau 0.5"):
        assert fashion(name)[50] > fashion("FedSC")[50] + 0.002


def test_how_far_fedsc_is_behind_on_cifar10() -> None:
    text = one_line(PAGE, SMALL)
    behind = ahead_by(cifar10("FedAvg"), cifar10("FedSC"))
    late = np.mean([behind[round] for round in range(41, 61)])
    most = max(behind.values())
    assert behind[9] == most, "in the first rounds"
    assert f"behind by up to {most:.3f} in the first rounds, " in text
    assert f"and by {late:.3f} on average after round 40" in text
    weaker = ahead_by(cifar10("FedSC, tau 0.5"), cifar10("FedAvg"))
    late = np.mean([weaker[round] for round in range(25, 41)])
    assert f"the deficit is {-min(weaker.values()):.3f} at most" in text
    assert f"from round 25 on it is level, {late:.3f} ahead on average" in text


def test_the_level_on_cifar10_stands_beside_the_papers() -> None:
    ours, papers = cifar10("FedAvg")[60], published("fedsc/cifar10_dir02")["fedavg"]
    said = f"FedAvg ends at {ours:.3f} on CIFAR-10 (paper: {papers:.3f}"
    assert said in one_line(PAGE, SMALL)


@pytest.mark.parametrize("name", CONV2CIFAR)
def test_a_row_of_conv2cifar_is_a_run_of_its_file(name: str) -> None:
    stored = runs("cifar10_fedsc")
    curves = {each: curve(stored[overrides]) for each, overrides in CONV2CIFAR.items()}
    table = body(section(PAGE, BEHIND), "| | global accuracy after 20 rounds | after 40 |")
    assert len(table) == len(CONV2CIFAR)
    assert lines_by_round(curves, (20, 40), bold=True)[name] in table


@pytest.mark.parametrize("name", GRIDS)
def test_a_row_of_temperatures_is_of_validation_in_the_last_round(name: str) -> None:
    head = table_line("temperature, validation accuracy with seed 100", TEMPERATURES)
    table = body(section(PAGE, REPAIR), head)
    assert len(table) == len(GRIDS)
    cell, setting = GRIDS[name]
    most = TEMPERATURES[-1] if cell == FASHION_5000 else LAST_OF_CIFAR10
    run = [run_of(cell, setting(each), 100) for each in TEMPERATURES if each <= most]
    cells = [f"{each['validation/accuracy']['15']:.3f}" for each in run]
    cells += [NOT_RUN] * (len(TEMPERATURES) - len(cells))
    assert table_line(name, bold_best(cells)) in table


@pytest.mark.parametrize("name", FASHION_SETTINGS)
def test_a_row_of_the_repair_on_fashion_mnist_has_one_value_a_seed(name: str) -> None:
    cells = [by_seed(of_seeds(FASHION_3000, FASHION_SETTINGS[name], round)) for round in (5, 10)]
    head = table_line("Fashion-MNIST, accuracy, one value a seed", ["round 5", "round 10"])
    table = body(section(PAGE, REPAIR), head)
    assert len(table) == len(FASHION_SETTINGS)
    assert table_line(name, cells) in table


@pytest.mark.parametrize("name", IMAGES_SETTINGS)
def test_a_row_of_the_repair_on_cifar10_has_one_value_a_seed(name: str) -> None:
    cell = by_seed(of_seeds(IMAGES_5000, IMAGES_SETTINGS[name], 15))
    head = table_line("CIFAR-10 as images, accuracy in round 15", ["one value a seed"])
    table = body(section(PAGE, REPAIR), head)
    assert len(table) == len(IMAGES_SETTINGS)
    assert table_line(name, [cell]) in table


@pytest.mark.parametrize("row", range(len(GAINS)), ids=lambda row: GAINS[row][0])
def test_a_gain_is_paired_by_seed_and_has_its_verdict(row: int) -> None:
    name, *pair = GAINS[row]
    corner = "| gain in the last round, paired by seed, 95 % | | verdict |"
    table = body(section(PAGE, REPAIR), corner)
    assert len(table) == len(GAINS)
    values = differences(*pair)
    assert table[row] == table_line(name, [gain(values), verdict(values)])


def test_a_temperature_of_1_is_ahead_on_fashion_mnist_and_level_on_cifar10() -> None:
    found = gain(differences(FASHION_3000, paper(1), FEDAVG))
    text = one_line(PAGE, REPAIR)
    assert f"is ahead of FedAvg by {found.removeprefix('+')}; 8, the choice of the larger" in text
    assert verdict(differences(FASHION_3000, paper(1), FEDAVG)) == "ahead"
    assert verdict(differences(IMAGES_5000, paper(1), FEDAVG)).startswith(NOT_SHOWN)


def test_the_papers_temperature_stays_near_chance_on_cifar10() -> None:
    assert "at or near chance on CIFAR-10 for 15 rounds" in one_line(PAGE, REPAIR)
    for seed in range(3):
        own = curve(run_of(IMAGES_5000, RELEASED, seed))
        assert max(own.values()) < 0.14


def test_the_range_over_networks_is_that_of_their_table() -> None:
    """No file holds this table; other sentences repeat its smallest and largest figures."""
    corner = "| U | gradient of RPCL over that of the cross-entropy |"
    table = body(section(PAGE, BEHIND), corner)
    ratios = {
        line.split("|")[1].strip(): [float(each) for each in line.split("|")[5].split(", ")]
        for line in table
    }
    own = ratios.pop("CIFAR-10, ResNet10 of the paper")
    fashion_mnist = ratios.pop("Fashion-MNIST, LeNet-5")
    small = [each for values in ratios.values() for each in values]
    assert max(fashion_mnist) < 1
    answer = f"{min(small)} to {max(small)} times as strong as the cross-entropy, with the paper's"
    line = line_with((RESULTS / "README.md").read_text(), "Why is FedSC behind on a small network?")
    assert f"{answer} network {min(own)} to {max(own)} times" in line
    assert f"it is {min(own)} to {max(small)} times that" in one_line(PAGE, REPAIR)


@pytest.mark.parametrize("network", GRADIENTS)
def test_a_row_of_the_gradients_is_of_the_file(network: str) -> None:
    corner = "| RPCL: U over batch | dataset | none | unit | CPDR: mse | l1 |"
    table = body(section(PAGE, REPAIR), corner)
    assert len(table) == sum(len(gradients(each)) for each in GRADIENTS)
    (start,) = (row for row, line in enumerate(table) if line.startswith(f"| {network} |"))
    stored = gradients(network)
    for line, row in zip(table[start : start + len(stored)], stored, strict=True):
        round, *cells = (cell.strip() for cell in line.split("|")[2:-1])
        assert float(round) == row["round"]
        for cell, name in zip(cells, COLUMNS, strict=True):
            assert rounds_to(cell, row[name]), name


def test_what_is_said_of_the_gradients_follows_from_the_file() -> None:
    text = one_line(PAGE, REPAIR)
    *lenets, resnet = GRADIENTS
    batch = of_networks([resnet], "RPCL, batch")
    assert [f"{1 / each:.0f}" for each in batch] == ["39", "14"]
    assert "the contrast is a fortieth to a fourteenth of the cross-entropy" in text
    dataset = of_networks([resnet], "RPCL, dataset")
    assert {f"{each:.1f}" for each in dataset} == {"0.4"}
    assert "it is two fifths" in text
    sums = [of_networks(each, "CPDR, l1") for each in ([resnet], lenets)]
    (low, high), (least, most) = ((min(each), max(each)) for each in sums)
    said = f"gradient {low:.0f} to {high:.0f} times that of the cross-entropy there, and "
    assert f"{said}13 to {most:.0f} times on LeNet-5" in text
    assert rounds_to("13", least)
    squares = of_networks(GRADIENTS, "CPDR, mse")
    assert rounds_to("0.02", min(squares))
    assert rounds_to("0.11", max(squares))
    assert "the released mean of squares has 0.02 to 0.11" in text
    units, batches = (of_networks(GRADIENTS, f"RPCL, {each}") for each in ("unit", "batch"))
    assert f"varies between networks from {min(units):.0f} to {max(units):.0f}, " in text
    assert f"U(r) over the batch from {min(batches):.2f} to {max(batches):.0f}:" in text
