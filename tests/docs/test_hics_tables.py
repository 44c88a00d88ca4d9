"""HiCS-FL's page has the numbers of its four files."""

import itertools
import re

import numpy as np
import pytest
from generate.results import RESULTS
from support.hics_runs import (
    ALL,
    CELLS,
    EARLY,
    LATE,
    RUNS,
    SIX,
    SMALL,
    accuracy,
    delays,
    first,
    gains,
    small,
    smoothed,
)
from support.result_pages import (
    both,
    by_seed,
    could_show,
    filled,
    gain,
    interval,
    near,
    prose,
    published,
    rows,
    section,
    signed,
    stored,
)

from fedexp.reporting.papers.verdicts import AHEAD, BEHIND, NOT_SHOWN

FULL_SIZE = section("hics.md", "Fashion-MNIST, settings (1) to (3)")
RELEASED = section("hics.md", "Fashion-MNIST, setting (2), the released network")
HEADS = section("hics.md", "Heads without a trained bias, on digits")
REPAIR = section("hics.md", "HiCS-FL without the fading estimate")

BATCHNORM = {run["name"]: run for run in stored("hics_fmnist_batchnorm")["runs"]}
SIGNALS = stored("digits_hics_signals")

VARIANTS = {
    "plain SGD": ", plain SGD",
    "first estimates kept": ", estimates of the first rounds kept",
    "optimizer kept": ", optimizer kept",
}
NOT_REACHED = "\N{EN DASH}"
NEW = (3, 4, 5)


FULL_TABLE = filled(FULL_SIZE, FULL_SIZE[FULL_SIZE.index("| setting |") :].partition("\n")[0], 2)


def run_names(row: list[str]) -> list[str]:
    """The names in the file of a row's runs."""
    sampler, _, variant = row[1].partition(", ")
    name = re.findall(r"`(\w+)`", sampler)[0]
    setting = f"setting {row[0].strip('()')}"
    return [
        f"{setting}, {name}{VARIANTS.get(variant, '')}, seed {seed}" for seed in row[2].split(",")
    ]


@pytest.mark.parametrize("row", FULL_TABLE, ids=lambda row: " ".join(row[:3]))
def test_a_row_at_full_size_is_its_runs(row: list[str]) -> None:
    curves = [RUNS[name]["global/accuracy"] for name in run_names(row)]
    cells = []
    for target, read in itertools.product((0.75, 0.70), (list, smoothed)):
        found = [first(read(curve), target) for curve in curves]
        cells.append(", ".join(str(each or NOT_REACHED) for each in found))
    cells.append(by_seed([float(np.mean(curve[EARLY])) for curve in curves]))
    if len(curves[0]) == 200:
        cells.append(by_seed([float(np.mean(curve[LATE])) for curve in curves]))
    else:  # the run was stopped, so what it had not reached is open
        cells = ["" if cell == NOT_REACHED else cell for cell in cells] + [
            f"{len(curves[0])} rounds"
        ]
    assert row[4:] == cells


def test_every_run_at_full_size_stands_in_the_table() -> None:
    assert sorted(itertools.chain(*map(run_names, FULL_TABLE))) == sorted(RUNS)


def test_the_papers_rounds_are_those_of_the_preset() -> None:
    paper = published("hics/fmnist_setting2", "rounds_to/0.75")
    typed = {run_names(row)[0].split(", ")[1]: row[3] for row in FULL_TABLE if row[3]}
    assert typed == {key.removeprefix("sampler="): str(n) for key, n in paper.items()}


def test_what_six_seeds_of_setting_two_say() -> None:
    text = prose(FULL_SIZE)
    said = gain(gains(ALL, SIX)).lstrip("+")
    assert f"all 200 rounds is {said} above that of random sampling (95 %; by seed" in text
    assert f"(95 %; by seed {signed(gains(ALL, SIX))})" in text
    early, late = (gain(gains(rounds, SIX)) for rounds in (EARLY, LATE))
    assert f"This is {early.lstrip('+')} in the first hundred rounds and {late} in" in text
    early, late = (gain(gains(rounds, NEW)) for rounds in (EARLY, LATE))
    assert f"alone they give {early.lstrip('+')} and {late}." in text
    assert sum(each > 0 for each in gains(EARLY, SIX)) == 5
    assert "HiCS-FL is ahead early in five seeds of six" in text
    means = [by_seed([float(np.mean(accuracy(2, name, n)[LATE])) for n in (4, 5)])
             for name in ("hics", "weighted")]  # fmt: skip
    own, random = (each.replace(", ", " and ") for each in means)
    assert f"mean accuracy over the second hundred is {own}, random's {random}." in text


def test_the_rounds_to_a_target_in_setting_two() -> None:
    text = prose(FULL_SIZE)
    assert [n for n in SIX if first(accuracy(2, "hics", n), 0.75) is None] == [4]
    by_seed_, five = delays(0.75, SIX), delays(0.75, (0, 1, 2, 3, 5))
    listed = ", ".join("none" if n == 4 else f"{each:+d}" for n, each in enumerate(by_seed_))
    assert (
        f"to 0.75, {gain(five, 0)} in the five seeds in which both reach it (by seed {listed};"
        in text
    )
    assert f"counted with 200, the six give {gain(by_seed_, 0)};" in text
    assert f"to 0.70 of the raw curve {gain(delays(0.70, SIX), 0)}." in text
    clustered = gain(delays(0.75, range(3), "clustered"), 0).lstrip("-")
    late = gain(gains(LATE, range(3), "clustered")).lstrip("+")
    assert (
        f"is at 0.75 by {clustered} rounds earlier than random (paper: {149 - 114}) and ahead by "
        f"{late} in the second hundred"
    ) in text


def test_how_the_curves_of_setting_two_level_off() -> None:
    pairs = [("weighted", 6), ("hics", 6), ("clustered", 3)]
    curves = [accuracy(2, name, n)[LATE] for name, seeds in pairs for n in range(seeds)]
    levels = [float(np.mean(curve)) for curve in curves]
    swing = np.mean([np.abs(np.diff(curve)).mean() for curve in curves])
    assert (
        f"level off at {min(levels):.2f} to {max(levels):.2f} and swing by {swing:.2f} from round"
    ) in prose(FULL_SIZE)


def test_the_levels_of_setting_two() -> None:
    text = prose(FULL_SIZE)
    raw = [first(accuracy(2, "weighted", n), 0.75) or 0 for n in SIX]
    smooth = [first(smoothed(accuracy(2, "weighted", n)), 0.75) for n in SIX]
    within = [each for each in smooth if each]
    assert len(within) == 5
    assert (
        f"Random sampling is at 0.75 after {min(raw)} to {max(raw)} rounds of the raw curves (six "
        f"seeds), and after {min(within)} to {max(within)} of the smoothed ones, in one seed not"
    ) in text
    hics = [each for n in SIX if (each := first(accuracy(2, "hics", n), 0.75))]
    assert f"HiCS-FL's 60 among our raw ones ({min(hics)} to {max(hics)})" in text


def mixed_clients(name: str) -> tuple[int, int, float]:
    """How often a mixed client was trained, and one with one class, and the former's entropy."""
    run = RUNS[name]
    entropy = np.array(run["label entropy, by client"])
    times = np.array(run["times trained, by client"])
    mixed = entropy > 0.1
    return round(times[mixed].mean()), round(times[~mixed].mean()), float(entropy[mixed].mean())


def test_hics_lives_by_its_mixed_clients() -> None:
    one = mixed_clients("setting 1, hics, seed 0")
    two = [mixed_clients(f"setting 2, hics, seed {seed}") for seed in range(3)]
    assert one[1] == 9
    lists = ["{}, {} and {}".format(*each) for each in zip(*two, strict=True)]
    entropies = "{:.2f}, {:.2f} and {:.2f}".format(*(each[2] for each in two))
    assert (
        f"such a client trains {one[0]} times and a client with one class nine times; in setting "
        f"(2), seeds 0 to 2, it is {lists[0]} times against {lists[1]}. Their mean label entropy "
        f"is {one[2]:.2f} here, and {entropies} in the partitions of setting (2)"
    ) in prose(FULL_SIZE)


def test_setting_one_and_plain_sgd() -> None:
    text = prose(FULL_SIZE)
    own, random = (accuracy(1, name, 0) for name in ("hics", "weighted"))
    assert (
        f"0.75 after {first(own, 0.75)} rounds instead of {first(random, 0.75)}, and "
        f"{np.mean(own[LATE]):.3f} against {np.mean(random[LATE]):.3f} over the last hundred"
    ) in text
    own, random = (accuracy(2, f"{name}, plain SGD", 0) for name in ("hics", "weighted"))
    assert (
        f"at 0.70 after {first(own, 0.7)} rounds and random after {first(random, 0.7)}, with mean "
        f"accuracies of {np.mean(own[EARLY]):.3f} and {np.mean(random[EARLY]):.3f} in the first "
        f"hundred rounds and {np.mean(own[LATE]):.3f} and {np.mean(random[LATE]):.3f} in the second"
    ) in text
    kept = accuracy(2, "hics, estimates of the first rounds kept", 1)
    random = accuracy(2, "weighted", 1)
    assert (
        f"({np.mean(kept[EARLY]):.3f} over the first hundred rounds, random "
        f"{np.mean(random[EARLY]):.3f})"
    ) in text


def test_why_setting_three_fails() -> None:
    text = prose(FULL_SIZE)
    run = RUNS["setting 3, hics, seed 0"]
    stays = np.mean(run["global/accuracy"][:150])
    assert f"here it stays near {stays:.2f} for 150 rounds, with seven of the ten" in text
    assert np.median(run["classes below 0.1"][:150]) == 7
    estimates = run["estimate after the last round, by client"]
    high = [each for each in estimates if each > 1]
    assert f"(estimated entropy {min(high):.1f} to {max(high):.1f} against 0)" in text
    times = np.array(run["times trained, by client"])
    entropy = np.array(run["label entropy, by client"])
    most = np.argsort(times)[-6:]
    assert (entropy > 0).sum() == 1
    assert entropy.argmax() in most
    assert f"take {times[most].sum()} of the {times.sum():,} places" in text
    plain, random = accuracy(3, "hics, plain SGD", 0), accuracy(3, "weighted", 0)
    said = (
        f"it stays behind, too ({np.mean(plain[EARLY]):.3f} over the first hundred rounds and "
        f"{np.mean(plain[LATE]):.3f} over the second; random, with momentum, "
        f"{np.mean(random[EARLY]):.3f} and {np.mean(random[LATE]):.3f})"
    )
    assert said in text
    names = ("hics, estimates of the first rounds kept", "weighted", "clustered")
    late = [np.mean(accuracy(3, name, 0)[LATE]) for name in names]
    said = "{:.3f} over the last hundred rounds, random {:.3f}, clustered {:.3f}".format(*late)
    assert said in text
    kept = np.mean(accuracy(3, "hics, optimizer kept", 0))
    assert (
        f"the mean accuracy is {kept:.3f} instead of {np.mean(run['global/accuracy']):.3f}" in text
    )


def test_power_of_choice_and_divfl() -> None:
    text = prose(FULL_SIZE)
    ideal, random = ([accuracy(n, name, 0) for n in (2, 1)]
                     for name in ("power_of_choice_ideal", "weighted"))  # fmt: skip
    means = [
        float(np.mean(curve[EARLY])) for pair in zip(ideal, random, strict=True) for curve in pair
    ]
    reached = [first(curve, 0.75) for curve in ideal]
    assert not any(first(smoothed(curve), 0.75) for curve in ideal)
    assert (
        "accuracy {:.3f} over the first hundred rounds in setting (2) (random {:.3f}), {:.3f} in "
        "setting (1) ({:.3f}), and 0.75 in round {} and {}"
    ).format(*means, *reached) in text
    released = first(accuracy(2, "power_of_choice", 0), 0.75)
    others = "{}, {} and {}".format(*(first(accuracy(2, "weighted", n), 0.75) for n in range(3)))
    assert f"reaches 0.75 in {released} rounds (paper: 79), and random in {others}." in text
    curves = accuracy(2, "divfl_ideal", 0), accuracy(2, "weighted", 0)
    own, random_ = ([np.mean(curve[EARLY]), np.mean(curve[LATE])] for curve in curves)
    assert (
        "mean accuracy {:.3f} over the first hundred rounds and {:.3f} over the last, random "
        "{:.3f} and {:.3f}; 0.75 in round {}, random {}."
    ).format(*own, *random_, *(first(curve, 0.75) for curve in curves)) in text


BATCHNORM_RUNS = {
    "`weighted` (random)": ("weighted", "weighted, momentum"),
    "`hics`": ("hics", "hics, momentum"),
    "`hics_oracle`, true entropies": ("hics_oracle", None),
    "`hics`, estimates of the first rounds kept": ("hics, refresh=warm_up", None),
    "`clustered`": (None, "clustered, momentum"),
    "`power_of_choice_ideal`": (None, "power_of_choice_ideal, momentum"),
}


@pytest.mark.parametrize("sampler", BATCHNORM_RUNS)
def test_a_row_of_the_released_network_is_its_runs(sampler: str) -> None:
    table = rows(RELEASED, RELEASED[RELEASED.index("| sampler |") :].partition("\n")[0])
    assert set(table) == set(BATCHNORM_RUNS)
    cells = []
    for name in BATCHNORM_RUNS[sampler]:
        curve = BATCHNORM[name]["global/accuracy"] if name else []
        found = [first(read(curve), 0.75) for read in (list, smoothed)] if name else []
        cells += [str(each or "not reached") for each in found] or ["", ""]
        cells.append(str(len(curve)) if name else "not run")
    assert table[sampler][1:] == cells


def test_the_sentences_on_the_released_network() -> None:
    text = prose(RELEASED)
    level = [
        first(smoothed(BATCHNORM[name]["global/accuracy"]), 0.7) for name in ("hics", "weighted")
    ]
    assert "the two are level ({} and {} rounds, smoothed)".format(*level) in text
    choice = BATCHNORM["power_of_choice_ideal, momentum"]["global/accuracy"]
    assert f"Power of choice has {max(choice):.2f} at best in {len(choice)} rounds" in text
    names = ("power_of_choice_ideal", "weighted", "hics", "clustered")
    below = [np.mean(BATCHNORM[f"{name}, momentum"]["classes below 0.1"][49:76]) for name in names]
    assert (
        "rounds 50 to 76 on average {:.1f} of ten classes are below 0.1 (random {:.1f}, HiCS-FL "
        "{:.2f}, clustered {:.1f})"
    ).format(*below) in text


HEAD_NAMES = {"linear": "linear", "linear without bias": "linear_nobias"}
SIGNAL_NAMES = {
    "update of the bias": "bias",
    "what plain SGD would do to a bias": "virtual_bias",
    "row means of the matrix's update": "weight_rowmean",
    "class counts": "class_counts",
}
HEAD_TABLE = filled(HEADS, "| head | signal | round 5 | 8 | 11 | 14 |")
CORRELATIONS = SIGNALS["correlation, rounds 5 8 11 14, seed 0"]


@pytest.mark.parametrize("row", HEAD_TABLE, ids=lambda row: " ".join(row[:2]))
def test_a_row_of_the_heads_is_its_correlations(row: list[str]) -> None:
    assert len(HEAD_TABLE) == len(CORRELATIONS)
    stored_row = CORRELATIONS[f"{HEAD_NAMES.get(row[0], row[0])} {SIGNAL_NAMES[row[1]]}"]
    assert row[2:] == [f"{each:.2f}" for each in stored_row]


def test_a_perfect_signal_is_no_gain() -> None:
    (values,) = (each for key, each in SIGNALS.items() if key.startswith("global accuracy"))
    (all_, early, last), (all_2, early_2, last_2) = (
        [[values[signal][seed][n] - values["random"][seed][n] for seed in "012"] for n in range(3)]
        for signal in ("class_counts", "virtual_bias")
    )
    text = prose(HEADS)
    said = f"{gain(all_).lstrip('+')} above random sampling's with class counts (three seeds, 95 %;"
    assert f"{said} by seed {signed(all_)}) and {gain(all_2)} with the virtual bias" in text
    (typed,) = re.findall(r"in the first 30 rounds (.*); in the last five", text)
    assert near(typed, [*both(early), *both(early_2)])
    assert f"in the last five {gain(last)} and {gain(last_2)}." in text


def correlations(cell: str, sampler: str) -> str:
    """The rank correlations, mean of rounds 11 to 100, as the page writes them."""
    if sampler == "weighted":
        return ""
    found = []
    for seed in range(3):
        run = SMALL[CELLS[cell].format(sampler, seed)]
        mean = run.get("rank correlation, mean of rounds 11 to 100")
        found.append(np.mean(run["sampler/entropy_spearman"][10:]) if mean is None else mean)
    return "1" if found == [1, 1, 1] else ", ".join(f"{each:.2f}" for each in found)


SAMPLERS = {
    "`weighted` (random)": "weighted",
    "`hics`, temperature 0.0025": "hics",
    "`hics_scale_free`, temperature 0.2": "hics_scale_free",
    "`hics_oracle`, true entropies": "hics_oracle",
}
PAIRS = [("setting (1)", "setting (3)"), ("setting (2)", "setting (3), plain SGD")]
CORNERS = [
    "| | setting (1) | rank correlation | setting (3) |",
    "| mean accuracy of all rounds | setting (2) | rank correlation | setting (3), plain SGD |",
]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("table", [0, 1])
def test_a_row_of_the_repair_is_its_runs(table: int, sampler: str) -> None:
    one, three = PAIRS[table]
    name = SAMPLERS[sampler]
    found = rows(REPAIR, CORNERS[table])
    assert set(found) == set(SAMPLERS)
    cells = [by_seed(small(one, name)), correlations(one, name), by_seed(small(three, name))]
    assert found[sampler] == cells


def verdict(differences: list[float]) -> str:
    """What the page says about gains, one a seed."""
    found = interval(differences)
    direction = AHEAD if found.mean > 0 else BEHIND
    if found.excludes_zero:
        return direction
    same_sign = all((each > 0) == (found.mean > 0) for each in differences)
    every = f"; {direction} with all seeds" if same_sign else ""
    return f"{NOT_SHOWN} ({could_show(found)}){every}"


COMPARISONS = {
    "`hics_scale_free` over `hics`": ("hics_scale_free", "hics"),
    "`hics_scale_free` over random": ("hics_scale_free", "weighted"),
    "`hics` over random": ("hics", "weighted"),
    "`hics_oracle` over `hics_scale_free`": ("hics_oracle", "hics_scale_free"),
}


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("table", [0, 1])
def test_a_gain_of_the_repair_is_that_of_its_runs(table: int, comparison: str) -> None:
    one, three = PAIRS[table]
    corner = f"| gain, paired by seed, 95 % | {one} | verdict | {three} | verdict |"
    cells = []
    for cell in (one, three):
        own, other = (small(cell, name) for name in COMPARISONS[comparison])
        differences = [a - b for a, b in zip(own, other, strict=True)]
        cells += [gain(differences), verdict(differences)]
    assert rows(REPAIR, corner)[comparison] == cells


@pytest.mark.parametrize("setting", [1, 2])
def test_the_true_entropies_of_the_ten_highest(setting: int) -> None:
    (found,) = (each for each in stored("hics_scale_free")["estimates"]
                if each["setting"] == setting)  # fmt: skip
    estimates = [found[key] for key in ("fixed 0.0025", "client 0.2")]
    ten = [found["possible"], *(each["true entropy of the ten highest"] for each in estimates)]
    ranks = " | ".join(f"{each['rank correlation']:.2f}" for each in estimates)
    assert (
        f"| setting ({setting}): mean true entropy of the ten | "
        f"{' | '.join(f'{each:.2f}' for each in ten)} |\n| rank correlation | 1 | {ranks} |\n"
    ) in REPAIR


@pytest.mark.parametrize("setting", [1, 3])
def test_no_single_temperature_does_as_well(setting: int) -> None:
    corner = REPAIR[REPAIR.index("| temperature | `hics`: 0.0025 |") :].partition("\n")[0]
    columns = [("hics", each) for each in ("0.0025", "0.0005", "0.0001")]
    columns += [("hics_scale_free", each) for each in ("0.05", "0.1", "0.2", "0.4")]
    assert re.findall(r"\d[\d.]*", corner) == [temperature for _, temperature in columns]
    cells = []
    for sampler, temperature in columns:
        run = SMALL.get(f"setting {setting}, {sampler} temperature={temperature}, seed 100")
        key = "validation/accuracy, every second round"
        cells.append(f"{np.mean(run[key]):.3f}" if run else "not run")
    assert rows(REPAIR, corner)[f"setting ({setting})"] == cells


def test_setting_two_lies_between_random_and_the_oracle_in_all_seeds_but_one() -> None:
    random, repaired, oracle = (
        small("setting (2)", name) for name in ("weighted", "hics_scale_free", "hics_oracle")
    )
    assert all(low < own for low, own in zip(random, repaired, strict=True))
    above = [own - high for own, high in zip(repaired, oracle, strict=True) if own > high]
    assert len(above) == 1
    assert above[0] < 0.005
    assert "between random sampling and the oracle with all seeds but one" in prose(REPAIR)


def test_every_file_is_named_on_the_page() -> None:
    page = (RESULTS / "hics.md").read_text()
    files = ["hics_fmnist", "hics_fmnist_batchnorm", "digits_hics_signals", "hics_scale_free"]
    assert all(f"`{name}.json`" in page for name in files)
