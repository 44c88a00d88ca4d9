"""The figures of FedNH's page are those of its files, and of the paper's numbers in the preset."""

from collections.abc import Sequence

import numpy as np
import pytest
import yaml
from generate.results import ROOT
from support.result_pages import (
    body,
    by_seed,
    curve,
    gain,
    lines_by_round,
    one_line,
    published,
    runs,
    section,
    table_line,
)

PAGE, EXPERIMENT = "fednh.md", "fednh/cifar10_dir03"
TABLE_1, SMALL = "CIFAR-10, Dirichlet(0.3), Table 1", "CIFAR-10, Dirichlet(0.3), small"
METHODS = {"FedAvg": "fedavg", "FedNH": "fednh"}
SEEDS = range(3)
SHOWN = (20, 40, 60, 80, 100, 120, 140, 160, 180, 190, 200)
LAST_FIVE = range(160, 201, 10)
PERSONAL = {"PM(V)": "personal/accuracy_uniform", "PM(L)": "personal/accuracy_local"}
STATISTICS = ("round 200", "last five", *PERSONAL)


def full_size(method: str, seed: int) -> dict[int, float]:
    return curve(runs("cifar10_fednh_table1")[f"seed={seed} algorithm={method}"])


def small(method: str) -> dict[int, float]:
    return curve(runs("cifar10_fednh")[f"algorithm={method}"])


def of_seeds(statistic: str, method: str) -> list[float]:
    """One value a seed."""
    if statistic in PERSONAL:
        stored = runs("cifar10_fednh_table1")
        last = [stored[f"seed={seed} algorithm={method}"]["last"] for seed in SEEDS]
        return [each[PERSONAL[statistic]] for each in last]
    curves = [full_size(method, seed) for seed in SEEDS]
    rounds = [200] if statistic == "round 200" else LAST_FIVE
    return [float(np.mean([each[round] for round in rounds])) for each in curves]


def differences(statistic: str) -> list[float]:
    pairs = zip(*(of_seeds(statistic, each) for each in ("fednh", "fedavg")), strict=True)
    return [ours - plain for ours, plain in pairs]


def papers(statistic: str) -> dict[str, float]:
    return published(EXPERIMENT, PERSONAL.get(statistic, "global/accuracy"))


def papers_gain(statistic: str) -> float:
    # The float of a decimal number that ends in 5 may lie below it.
    return round(papers(statistic)["fednh"] - papers(statistic)["fedavg"], 4) + 1e-9


def deviation(method: str) -> float:
    preset = yaml.safe_load((ROOT / "conf" / "experiment" / f"{EXPERIMENT}.yaml").read_text())
    return float(preset["paper"][0]["spread"][f"algorithm={method}"])


def signed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:+.3f}" for value in values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_the_curves_is_a_run_of_the_file(name: str, seed: int) -> None:
    head = table_line("global accuracy in round", ["seed", *SHOWN])
    table = body(section(PAGE, TABLE_1), head)
    assert len(table) == len(METHODS) * len(SEEDS)
    values = [f"{full_size(METHODS[name], seed)[round]:.3f}" for round in SHOWN]
    assert table_line(name, [seed, *values]) in table


@pytest.mark.parametrize("name", METHODS)
def test_the_values_of_a_method_stand_beside_the_papers(name: str) -> None:
    method = METHODS[name]
    cells = {each: by_seed(of_seeds(each, method)) for each in STATISTICS}
    paper = {each: f"{papers(each)[method]:.3f}" for each in STATISTICS}
    row = [cells["round 200"], cells["last five"]]
    row += [f"{paper['last five']} ± {deviation(method):.3f}"]
    row += [cells["PM(V)"], paper["PM(V)"], cells["PM(L)"], paper["PM(L)"]]
    assert table_line(name, row) in section(PAGE, TABLE_1)


def test_the_gains_are_those_of_equal_seeds() -> None:
    head = "| one value a seed | global, round 200 | mean of rounds 160 to 200 |"
    text = section(PAGE, TABLE_1).partition(head)[2]
    gains = {each: signed(differences(each)) for each in STATISTICS}
    paper = {each: f"{papers_gain(each):+.3f}" for each in STATISTICS}
    row = [gains["round 200"], gains["last five"], paper["last five"]]
    row += [gains["PM(V)"], paper["PM(V)"], gains["PM(L)"], paper["PM(L)"]]
    assert table_line("gain", row) in text
    means = [gain(differences(each)) for each in STATISTICS]
    assert f"| mean gain, 95 % | {means[0]} | {means[1]} | | {means[2]} | | {means[3]} | |" in text


def test_the_levels_are_means_over_seeds() -> None:
    text = one_line(PAGE, TABLE_1)
    mean = {
        (statistic, method): float(np.mean(of_seeds(statistic, method)))
        for statistic in STATISTICS
        for method in ("fedavg", "fednh")
    }
    paper = papers("last five")
    assert (
        f"FedAvg has {mean['round 200', 'fedavg']:.3f} in the last round and "
        f"{mean['last five', 'fedavg']:.3f} in the mean of the last five evaluations "
        f"(paper: {paper['fedavg']:.3f}), FedNH {mean['round 200', 'fednh']:.3f} and "
        f"{mean['last five', 'fednh']:.3f} ({paper['fednh']:.3f})"
    ) in text
    ours = {method: mean["PM(V)", method] for method in ("fedavg", "fednh")}
    paper = papers("PM(V)")
    assert (
        f"lower by {paper['fedavg'] - ours['fedavg']:.2f} for FedAvg "
        f"({ours['fedavg']:.3f} against {paper['fedavg']:.3f}) and "
        f"{paper['fednh'] - ours['fednh']:.2f} for FedNH "
        f"({ours['fednh']:.3f} against {paper['fednh']:.3f})"
    ) in text
    below = {f"{papers('PM(L)')[each] - mean['PM(L)', each]:.2f}" for each in ("fedavg", "fednh")}
    assert below == {"0.01"}
    assert "PM(L) by 0.01 for both" in text


def test_global_accuracy_is_one_or_two_deviations_below_the_papers() -> None:
    text = one_line(PAGE, TABLE_1)
    spread = {method: deviation(method) for method in ("fedavg", "fednh")}
    said = f"({spread['fedavg']:.3f}, {spread['fednh']:.3f})"
    assert f"within one or two of the paper's deviations {said}" in text
    for method, own in spread.items():
        for statistic in ("round 200", "last five"):
            below = papers(statistic)[method] - np.mean(of_seeds(statistic, method))
            assert 1 <= below / own <= 2
    ends = of_seeds("round 200", "fedavg")
    assert f"FedAvg ends between {min(ends):.3f} and {max(ends):.3f}" in text


def test_the_papers_signs_at_a_part_of_its_size() -> None:
    text = one_line(PAGE, TABLE_1)
    three = ("round 200", "PM(V)", "last five")
    final, local, recent = (np.mean(differences(each)) / papers_gain(each) for each in three)
    said = f"in the last round at {final:.2f} and {local:.2f} of its size ({recent:.2f} globally in"
    assert f"with all three seeds**, {said} the mean of the last five evaluations)" in text
    assert min(min(differences(each)) for each in three) > 0
    for statistic in STATISTICS:
        mean, half = map(float, gain(differences(statistic)).split(" ± "))
        assert abs(mean) < half, "no interval of three seeds excludes zero"


def test_fednh_starts_behind_and_is_ahead_from_these_rounds_on() -> None:
    starts = []
    for seed in SEEDS:
        plain, ours = full_size("fedavg", seed), full_size("fednh", seed)
        assert ours[10] < plain[10]
        starts.append(10 + max(round for round in plain if ours[round] <= plain[round]))
    first, second, third = starts
    count = len(range(first, 201, 10))
    assert (
        f"at each of the {count} evaluations from round {first} to 200 with seed 0, "
        f"and from round {second} and {third} with seeds 1 and 2"
    ) in one_line(PAGE, TABLE_1)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_the_small_experiment_is_a_run_of_its_file(name: str) -> None:
    rounds = (40, 60, 80, 100, 120)
    table = body(section(PAGE, SMALL), table_line("global accuracy in round", rounds))
    assert len(table) == len(METHODS)
    curves = {each: small(method) for each, method in METHODS.items()}
    assert lines_by_round(curves, rounds, bold=False)[name] in table


def test_the_small_experiment_has_these_images_and_rounds() -> None:
    text = one_line(PAGE, SMALL)
    assert "on 10,000 images, 100 a client, stopped after 120 of 200 rounds; seed 0" in text
    assert max(small("fedavg")) == max(small("fednh")) == 120
    for run in runs("cifar10_fednh").values():
        assert {"data.subset=10000", "seed=0"} <= set(run["overrides"])


def test_fednh_is_ahead_in_the_small_experiment() -> None:
    plain, ours = small("fedavg"), small("fednh")
    start = 10 + max(round for round in plain if ours[round] <= plain[round])
    paper = papers("last five")
    assert (
        f"ahead from round {start} on, by {ours[120] - plain[120]:.3f} in round 120 "
        f"(paper: {paper['fednh']:.3f} against {paper['fedavg']:.3f}"
    ) in one_line(PAGE, SMALL)
