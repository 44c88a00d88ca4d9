"""The table of what was found: its numbers are on the pages that it names, and its files exist."""

import re
from collections.abc import Callable

import pandas as pd
import pytest
from generate.results import RESULTS
from support import fedgela_runs, fednh_runs, hics_runs, system_runs
from support.pages import anchor_of
from support.result_pages import could_show, gain, interval, leaderboard, stored, tuned

from fedexp.reporting.leaderboard.repetition import verdicts_again
from fedexp.reporting.leaderboard.results import GLOBAL
from fedexp.reporting.leaderboard.standings import conclusions

TABLE = (RESULTS / "README.md").read_text().partition("| question |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_answer_is_on_its_page(row: list[str]) -> None:
    _, found, _, _, page = row
    text = read(page)
    numbers = re.findall(r"[+-]?\d\.\d+(?: ± \d\.\d+)?", found)
    assert [each for each in numbers if each not in text] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_numbers_are_in_a_file_of_the_folder(row: list[str]) -> None:
    files = re.findall(r"`([\w/]+\.(?:csv|json))`", row[3])
    assert [each for each in files if not (RESULTS / each).exists()] == []


def test_every_page_is_named() -> None:
    text = (RESULTS / "README.md").read_text()
    pages = {path.name for path in RESULTS.glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\((\w+\.md)", text))
    assert len(ROWS) > 20


def read(link: str) -> str:
    """The page behind a link of the table, or the section that the link names."""
    ((target, anchor),) = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", link)
    text = (RESULTS / (target or "README.md")).read_text()
    if not anchor:
        return text
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)
    (section,) = (each for each in sections if anchor_of(each.partition("\n")[0]) == anchor)
    return section


def plain(differences: list[float]) -> str:
    """A gain without its sign."""
    return gain(differences).lstrip("+")


def gap(own: list[float], base: list[float]) -> list[float]:
    return [a - b for a, b in zip(own, base, strict=True)]


def five_systems_won() -> list[str]:
    own = gain(fedgela_runs.gains("two classes", fedgela_runs.BEST))
    paper = fedgela_runs.papers_gain("two classes", fedgela_runs.GLOBAL)
    return [f"{own} in place of {paper:+.3f}"]


def systems(round_: int = 100, first: int = 60) -> dict[str, str]:
    """The mean global accuracy of some rounds of CIFAR-10 under one protocol."""
    curves = pd.read_csv(RESULTS / "cifar10_systems.csv")
    kept = curves[curves["round"].between(first, round_)]
    means = kept.groupby(["algorithm", "sampler", "loss"])["global/accuracy"].mean()
    return {"+".join(key): f"{mean:.3f}" for key, mean in means.items()}


def one_protocol() -> list[str]:
    gains = [gain(system_runs.gains(name)) for name in ("fedsc", "fedgela", "hics", "fednh")]
    (one,) = system_runs.gains("fedptr_s")
    said = "over FedAvg FedSC gains {}, FedGELA {}, HiCS-FL {} and FedNH {}, all four without 0"
    feddyn = gain(system_runs.gains("feddyn_paper"))
    return [
        said.format(*gains),
        f"FedPTR-S has {one:+.3f} with one seed; FedDyn as in its Algorithm 1, none of the five, "
        f"has {feddyn}",
    ]


def logits_alone() -> list[str]:
    over = system_runs.gains("fednh", system_runs.CONTROL)
    alone = gain(system_runs.gains(system_runs.CONTROL))
    return [
        f"FedNH has {gain(over)} ({could_show(interval(over))}), and these logits over FedAvg "
        f"{alone}"
    ]


def combinations() -> list[str]:
    by_name = systems()
    loss, sampler = by_name["fednh+random+rpcl_cpdr"], by_name["fednh+hics+cross_entropy"]
    return [f"FedSC's loss has {loss}, with HiCS-FL's sampler {sampler}"]


def fedgela_parts() -> list[str]:
    values = {
        kind: fedgela_runs.parts(metric, rounds)
        for kind, metric, rounds in (
            ("global", fedgela_runs.GLOBAL, fedgela_runs.LAST_ROUNDS),
            ("personal", "personal/accuracy_local", 1),
        )
    }
    cost = fedgela_runs.between(values["personal"], ("fedgela", 10), ("fedge", 10))
    more = fedgela_runs.between(values["global"], ("fedgela", 10), ("fedgela", 1)).lstrip("+")
    return [f"({cost} at E_W = 10)", f"10 in place of 1 gains {more} globally"]


def scale_by_validation() -> list[str]:
    runs = pd.read_csv(RESULTS / "fedgela_energy.csv")
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    regrets = means.rsub(means.max(axis=1), axis=0).mean()
    complete = means.notna().all()
    assert regrets[complete].idxmin() == 10
    return [f"over ten cells of digits and CIFAR-10 ({regrets[10]:.3f}; 1 {regrets[1]:.3f})"]


def scale_on_cifar10() -> list[str]:
    curves = pd.read_csv(RESULTS / "cifar10_fedgela_energy.csv").set_index(["head.energy", "round"])
    ten = curves["global/accuracy"][10, 50]
    others = systems(50, 50)
    one, base = (others[f"{name}+random+cross_entropy"] for name in ("fedgela", "fedavg"))
    return [f"with E_W = 10 FedGELA has {ten:.3f} after 50 rounds, with 1 {one}, FedAvg {base}"]


def contrast() -> list[str]:
    runs = {each["name"]: each for each in stored("fedsc_unit")["runs"]}
    name = "Fashion-MNIST, fedsc_released {}, 3000 images, seed {}"
    unit, batch = (
        [runs[name.format(kind, seed)]["global/accuracy"]["10"] for seed in range(3)]
        for kind in ("unit 4", "8")
    )
    found = gap(unit, batch)
    return [f"larger temperature: {gain(found)} ({could_show(interval(found))})"]


def hics_at_full_size() -> list[str]:
    return [f"differs by {plain(hics_runs.gains(hics_runs.ALL, hics_runs.SIX))}"]


def hics_collapse() -> list[str]:
    times = sorted(hics_runs.RUNS["setting 3, hics, seed 0"]["times trained, by client"])
    return [f"six clients of {len(times)} take {sum(times[-6:])} of {sum(times):,} places"]


def hics_repair() -> list[str]:
    own, base = (hics_runs.small("setting (3)", name) for name in ("hics_scale_free", "hics"))
    return [f"in setting (3): {gain(gap(own, base))} over HiCS-FL"]


def hics_signals() -> list[str]:
    correlation, accuracy = stored("digits_hics_signals").values()
    assert {*correlation["prototype class_counts"], *correlation["etf class_counts"]} == {1}
    own, base = ([accuracy[name][seed][0] for seed in "012"] for name in ("class_counts", "random"))
    return [f"(rank correlation 1.00), but no gain is shown: {plain(gap(own, base))}"]


def methods_on_digits() -> list[str]:
    frame = tuned(GLOBAL)
    counts = conclusions(frame)
    never = int((counts["behind"] == 0).sum())
    assert counts["ahead"].idxmax() == "fedgen"
    assert counts["ahead"].max() == frame["cell"].nunique() == 7
    assert counts["ahead, Holm"].max() == 1
    return [f"of {frame['method'].nunique()} tuned methods {never} are behind FedAvg in no cell"]


def fresh_seeds() -> list[str]:
    rows = verdicts_again(leaderboard("digits_fresh"), leaderboard("digits")).rows
    every, again, _, opposite = (
        sum(int(row[n]) for row in rows if row[1] == "alone") for n in range(2, 6)
    )
    holm, holm_again = (sum(int(row[n]) for row in rows if row[1] == "after Holm") for n in (2, 3))
    assert opposite == 0
    said = f"of {every} gains and losses whose interval excluded 0 {again} are "
    return [
        f"{said}there again and none is reversed; "
        f"of the {holm} that survived Holm's correction {holm_again} are"
    ]


def rates() -> list[str]:
    grid = tuned(GLOBAL).set_index(["cell", "method"])["mean"]["digits_dir03"]
    curves = pd.read_csv(RESULTS / "leaderboard_digits" / "rates.csv")
    curves = curves[(curves["optimizer.lr"] == 0.8) & (curves["seed"] < 5)]
    last = curves.sort_values("round").groupby(["algorithm", "seed"])["global/accuracy"]
    larger = last.apply(lambda own: own.tail(5).mean()).groupby("algorithm").mean()
    return [
        f"FedEM was ({grid['fedem']:.3f}, with a larger rate {larger['fedem']:.3f})",
        f"MoFedSAM ({grid['mofedsam']:.3f}, {larger['mofedsam']:.3f})",
    ]


def fedadmm() -> list[str]:
    curves = pd.read_csv(RESULTS / "fedadmm_validation.csv", dtype={"regularizer.eta": str})
    keys = [f"regularizer.{name}" for name in ("start", "eta", "rho")]
    last = curves.sort_values("round").groupby([*keys, "seed"])["validation/accuracy"]
    means = last.last().groupby(keys).mean()
    assert means.idxmax() == ("reset", "1", 0.01)
    best, local = means.max(), means["local", "1", 0.01]
    return [f"{best:.3f} in validation in the last round, the client's own model {local:.3f}"]


def easy_data() -> list[str]:
    values = stored("digits_methods")["final, by seed"]
    local, uniform = (f"personal/accuracy_{kind}" for kind in ("local", "uniform"))
    fedsc = gain(gap(values["fedsc"][local], values["fedavg"][local]))
    alike = {
        name: gain(gap(each[uniform], values["fedavg"][uniform])) for name, each in values.items()
    }
    return [
        f"FedSC personally ({fedsc})",
        f"count alike FedNH ({alike['fednh']}) and FedSC ({alike['fedsc']})",
        f"FedGELA with E_W = 1 is behind ({alike['fedgela']})",
    ]


def cell(file: str, configuration: str, metric: str = "global/accuracy") -> str:
    """Mean and standard deviation over seeds, as the report's table has them."""
    table = pd.read_csv(RESULTS / file).set_index("configuration").loc[configuration]
    return f"{table[f'{metric}/mean']:.3f} ± {table[f'{metric}/std']:.3f}"


def extreme_skew() -> list[str]:
    one, two, base = (
        cell("digits_skewed.csv", f"algorithm={name}")
        for name in ("scaffold", "feddyn_paper", "fedavg")
    )
    return [f"SCAFFOLD ({one}) and FedDyn ({two}); FedAvg has {base} (sd)"]


def personalization() -> list[str]:
    own, base = (
        cell("digits_personalization.csv", f"algorithm={name}", "personal/accuracy_uniform")
        for name in ("ditto", "fedavg")
    )
    return [f"Ditto {own}, FedAvg {base} (sd)"]


def byzantine() -> list[str]:
    flipped = "faults=byzantine faults.factor=5 aggregator="
    own = cell("digits_byzantine.csv", f"{flipped}krum aggregator.byzantine=0.3")
    base = cell("digits_byzantine.csv", f"{flipped}sample_weighted")
    return [f"Multi-Krum best, {own}; the average has {base} (sd)"]


def minutes(file: str, target: str) -> tuple[float, float]:
    """FedAvg's simulated minutes to a target without compression, buffered and synchronous."""
    values = pd.read_csv(RESULTS / file, dtype={"compression": str}, keep_default_na=False)
    metric = values["metric"] == f"clock/time_to/{target}"
    own = values[metric & (values["statistic"] == "final") & (values["algorithm"] == "fedavg")]
    own = own[(own["compression"] == "none") & (own["system.invite"] == "null")]
    means = own.astype({"value": float}).groupby("coordination")["value"].mean() / 60
    return float(means["buffered"]), float(means["synchronous"])


def asynchronous_digits() -> list[str]:
    buffered, synchronous = minutes("digits_asynchronous.csv", "0.9")
    assert round(synchronous / buffered) == 4
    said = f"FedAvg: {buffered:.2f} simulated minutes in place of {synchronous:.2f}"
    return ["about four times", said]


def asynchronous_cifar10() -> list[str]:
    return [
        "{:.2f} in place of {:.2f} minutes".format(*minutes("cifar10_asynchronous.csv", "0.35"))
    ]


def oort() -> list[str]:
    runs = pd.read_csv(RESULTS / "digits_oort.csv")
    runs = runs[runs["limit"].str.startswith("system.deadline")]
    times = runs.pivot(index="seed", columns="oort", values="time_to/0.9")
    found = gain(list(times["before"] - times["after"]), 1).lstrip("+")
    return [f"then comes {found} simulated seconds earlier"]


def effects_of(folder: str, file: str, key: str, name: str) -> list[str]:
    """An effect of a factorial experiment in each of its cells, in the order of the file."""
    table = pd.read_csv(RESULTS / folder / f"{file}.csv")
    own = table.loc[table[key] == name, ["estimate", "half_width"]].to_numpy()
    return [f"{estimate:+.3f} ± {half:.3f}" for estimate, half in own]


def factorial_digits() -> list[str]:
    one, other = effects_of("factorial_digits", "alone", "factor", "regularizer")
    pairs = effects_of("factorial_digits", "effects", "effect", "head x regularizer")
    return [
        f"({one} with Dirichlet(0.05), {other} with two classes a client)",
        f"(head x regularizer {', '.join(pairs)})",
    ]


def factorial_cifar10() -> list[str]:
    said = [
        f"({effect}{end})"
        for factor, end in (("regularizer", " alone"), ("sampler", ""))
        for effect in effects_of("factorial_cifar10", "alone", "factor", factor)
    ]
    for pair in ("head x regularizer", "head x loss"):
        (effect,) = effects_of("factorial_cifar10", "effects", "effect", pair)
        said.append(f"({pair} {effect})")
    return said


def shakespeare() -> list[str]:
    (run,) = (each for each in stored("shakespeare") if "algorithm=fedavg" in each["overrides"])
    return [f"predicts {run['global/accuracy']['10']:.3f} of the next characters after ten rounds"]


def engines() -> list[str]:
    jobs = stored("bench_cpu")["jobs"]
    ratios = {(each["job"].split(",")[0], each["name"]): each["ratio"] for each in jobs}
    small = [ratios["digits", name] for name in ("serial", "vectorized")]
    deep = [ratios["CIFAR-10", name] for name in ("serial, channels_last", "vectorized")]
    return [
        "`serial` takes {:.2f} times as long and `vectorized` {:.2f} times, with convolutions "
        "{:.2f} and {:.2f}".format(*small, *deep)
    ]


def gpu() -> list[str]:
    found = stored("gpu")
    ratios = [
        found[f"rounds_{network}_{engine}"]["median"]
        / found[f"rounds_{network}_hand-written"]["median"]
        for engine in ("vectorized", "serial")
        for network in ("small", "resnet18")
    ]
    return [
        "takes {:.2f} of a hand-written loop for a small network and {:.2f} for ResNet-18, "
        "`serial` {:.2f} and {:.2f}".format(*ratios)
    ]


def peers() -> list[str]:
    ratios = [
        next(each["ratio"] for each in stored("peers")["rows"] if each["name"] == name)
        for name in ("Flower", "pfl-research", "fluke")
    ]
    return [
        "Flower takes {:.2f} times as long as the loop, pfl-research {:.2f}, fluke {:.2f}".format(
            *ratios
        )
    ]


def population() -> list[str]:
    return [f"a thousand ({stored('population')['round_cpu_ratio']['fedavg']:.2f})"]


FOUND: dict[str, Callable[[], list[str]]] = {
    "Do the five systems gain what their papers report?": five_systems_won,
    "Is FedNH ahead of FedAvg at its paper's size?": lambda: [
        f"no difference is shown: {gain(fednh_runs.gains(fednh_runs.GLOBAL))}"
    ],
    "Which of the five is best under one protocol on CIFAR-10?": one_protocol,
    "Is FedNH's gain there that of its prototypes?": logits_alone,
    "Do their ideas add up?": combinations,
    "Why is FedGELA behind with Dirichlet(0.3)?": fedgela_parts,
    "Which E_W does FedGELA need?": scale_by_validation,
    "Does the scale matter on CIFAR-10?": scale_on_cifar10,
    "Does a contrast help whose gradient does not depend on lengths?": contrast,
    "Is HiCS-FL faster than random sampling in its setting (2)?": hics_at_full_size,
    "Why does it fail in setting (3)?": hics_collapse,
    "Does an estimate without the fading repair it?": hics_repair,
    "Can HiCS-FL work with a head that trains no bias?": hics_signals,
    "Which methods are ahead on every skew of digits?": methods_on_digits,
    "Are these verdicts there again with fresh seeds?": fresh_seeds,
    "Were some methods behind because the grid of learning rates ended too early?": rates,
    "Which start of FedADMM's local training is best?": fedadmm,
    "Do the systems help on easy data?": easy_data,
    "What helps against extreme skew?": extreme_skew,
    "Does personalization pay on digits?": personalization,
    "Which rule withstands a fifth of flipped, five times longer steps?": byzantine,
    "Is an asynchronous run faster?": asynchronous_digits,
    "The same on CIFAR-10?": asynchronous_cifar10,
    "What should Oort learn of clients that were left out?": oort,
    "Which of five parts should be added first, and do they add up?": factorial_digits,
    "The same on CIFAR-10, Dirichlet(0.3)?": factorial_cifar10,
    "Does a language model train?": shakespeare,
    "What does fedexp cost over a hand-written loop?": engines,
    "And on a GPU?": gpu,
    "And other simulators?": peers,
    "What do a million clients cost?": population,
}
"""Question -> what its answer says, computed from the row's file."""


@pytest.mark.parametrize("question", FOUND)
def test_an_answer_has_the_numbers_of_its_file(question: str) -> None:
    (answer,) = (row[1] for row in ROWS if row[0] == question)
    assert [said for said in FOUND[question]() if said not in answer] == []


def test_every_answer_from_a_file_is_compared_with_it() -> None:
    others = {row[0] for row in ROWS} - set(FOUND)
    assert all("printed by" in row[3] for row in ROWS if row[0] in others)
