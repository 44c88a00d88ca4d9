"""FedGELA's pages have the numbers of their files."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
import pytest
from generate.results import RESULTS
from scipy import stats
from support import fedgela_runs
from support.fedgela_runs import (
    BEST,
    CELLS,
    GLOBAL,
    LAST_ROUNDS,
    PERSONAL,
    between,
    cifar10,
    gains,
    length_one,
    papers_gain,
    parts,
    recent,
    three_seeds,
)
from support.result_pages import both, filled, gain, interval, near, prose, rows, section, stored

TEXT = "".join((RESULTS / f"{name}.md").read_text() for name in ("fedgela", "cifar10_systems"))
PARTS = section("fedgela.md", "What its two parts do with Dirichlet(0.3), digits")
VALIDATION = section("fedgela.md", "Which scale, by validation")
DIGITS = section("fedgela.md", "The scale of the classifier on digits")
CIFAR10 = section("fedgela.md", "CIFAR-10 images, two classes a client, and Dirichlet(0.1)")
DIGITS_RUNS = stored("digits_fedgela_scale")
MEASURED = " | validation accuracy | global accuracy | personal accuracy, own test split |"
DIGITS_TABLE = filled(DIGITS, f"| | E_W{MEASURED}", 0)
DIGITS_TABLE += [
    ["Dirichlet(0.3)", *row] for row in filled(DIGITS, f"| E_W, Dirichlet(0.3){MEASURED}")
]


@pytest.mark.parametrize("energy", [1, 10, 30])
@pytest.mark.parametrize(("algorithm", "name"), [("fedge", "FedGE"), ("fedgela", "FedGELA")])
def test_the_two_parts_on_digits(energy: int, algorithm: str, name: str) -> None:
    curves = pd.read_csv(RESULTS / "digits_fedgela_parts.csv")
    runs = curves[(curves["algorithm"] == algorithm) & (curves["head.energy"] == energy)]
    assert runs["seed"].nunique() == 5
    cells = [recent(runs, "global/accuracy", LAST_ROUNDS)]
    cells += [recent(runs, f"personal/accuracy_{kind}", 1) for kind in ("local", "uniform")]
    first = f"| {energy} " if algorithm == "fedge" else "| "
    assert f"{first}| {name} | {' | '.join(f'{each:.3f}' for each in cells)} |" in TEXT


@pytest.mark.parametrize("energy", [10, 30])
def test_the_scale_on_cifar10(energy: int) -> None:
    curves = pd.read_csv(RESULTS / "cifar10_fedgela_energy.csv")
    runs = curves[curves["head.energy"] == energy].set_index("round")["global/accuracy"]
    cells = " | ".join(f"{runs[round]:.3f}" for round in (10, 20, 30, 40, 50))
    assert f"| E_W = {energy} | {cells} |" in TEXT


def test_the_scale_by_validation() -> None:
    runs = pd.read_csv(RESULTS / "fedgela_energy.csv")
    by_cell = runs.groupby("cell")
    assert len(by_cell) == 10
    for cell, own in by_cell:
        shown = [f"{own['squared_factor'].mean():.1f}"]
        for energy in (0.3, 1, 3, 10, 30, 100):
            scores = own[own["E_W"] == energy]["score"]
            shown.append(_with_interval(scores) if len(scores) else "")
        name = str(cell).removeprefix("leaderboard/")
        assert f"| {name} | {' | '.join(shown)} |" in TEXT
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    regrets = means.rsub(means.max(axis=1), axis=0)
    for energy in (1, 3, 10, 30):
        mean, largest = regrets[energy].mean(), regrets[energy].max()
        assert f"| E_W = {energy} | {mean:.3f} | {largest:.3f} |" in TEXT


def _with_interval(scores: pd.Series) -> str:
    _, high = stats.t.interval(0.95, len(scores) - 1, scores.mean(), stats.sem(scores))
    return f"{scores.mean():.3f} ± {high - scores.mean():.3f}"


def test_what_the_two_parts_gain() -> None:
    text = prose(PARTS)
    ours, local, uniform = (
        parts(metric, rounds)
        for metric, rounds in (
            (GLOBAL, LAST_ROUNDS),
            ("personal/accuracy_local", 1),
            ("personal/accuracy_uniform", 1),
        )
    )
    pairs = [(("fedgela", energy), ("fedge", energy)) for energy in (1, 10, 30)]
    costs, rare = ([between(values, *pair) for pair in pairs] for values in (local, uniform))
    assert f"at every scale** ({', '.join(costs)})" in text
    assert f"where classes weigh equally, {rare[0]}, {rare[1]} and {rare[2]}." in text
    assert f"Globally they gain {between(ours, *pairs[0]).lstrip('+')} at E_W = 1" in text
    shown = [interval(list(ours[own] - ours[other])).excludes_zero for own, other in pairs]
    assert shown == [True, False, False]
    ten = [between(each, ("fedgela", 10), ("fedgela", 1)).lstrip("+") for each in (ours, local)]
    assert f"10 gains {ten[0]} globally and {ten[1]} personally" in text


def test_what_ten_gains_over_one_on_cifar10() -> None:
    runs = pd.read_csv(RESULTS / "fedgela_energy.csv")
    scores = runs[runs["cell"].str.contains("cifar10")].pivot(
        index=["cell", "seed"], columns="E_W", values="score"
    )
    gains = [gain(list(own[10] - own[1])).lstrip("+") for _, own in scores.groupby("cell")]
    assert f"Over 1 it gains {gains[0]} and {gains[1]} (paired by seed" in prose(VALIDATION)
    means = scores.groupby("cell").mean()
    assert (means.idxmax(axis=1) == 10).all()


def below_best(curve: pd.Series, energy: float) -> float:
    """How far a cell's curve, interpolated over log E_W, is below its best at this E_W."""
    known = curve.dropna()
    at = np.interp(np.log(energy), np.log(list(known.index)), list(known))
    return float(known.max() - at)


def regret_elsewhere(means: pd.DataFrame, scale: pd.Series, constants: Sequence[float]) -> float:
    """The mean regret of the constant that the other cells choose, in the cell left out."""
    regrets = pd.DataFrame(
        {
            n: {cell: below_best(means.loc[cell], n / scale[cell]) for cell in means.index}
            for n in constants
        }
    )
    left_out = [regrets.loc[cell, regrets.drop(index=cell).mean().idxmin()] for cell in means.index]
    return float(np.mean(left_out))


def test_the_skew_decides() -> None:
    runs = pd.read_csv(RESULTS / "fedgela_energy.csv")
    means = runs.groupby(["cell", "E_W"])["score"].mean().unstack()
    factors = runs.groupby("cell")["squared_factor"].mean()
    fixed = regret_elsewhere(means, pd.Series(1.0, index=means.index), list(means.columns))
    product = regret_elsewhere(means, factors, list(np.geomspace(1, 300, 101)))
    rank = stats.spearmanr(factors[means.index], means.idxmax(axis=1))
    assert (
        f"is on average {product:.3f} below the cell's own best value if the product is kept "
        f"constant, and {fixed:.3f} if E_W is (rank correlation of the best E_W and the mean "
        f"of Φ(y)²: {rank.statistic:.2f}, p = {rank.pvalue:.3f}, ten cells)"
    ) in prose(VALIDATION)


def digits_key(row: list[str]) -> str:
    """The name in the file of a row of the scale's tables on digits."""
    name, energy = row[:2]
    if name == "Dirichlet(0.3)":
        return f"{name} fedgela E_W={energy}"
    return f"{name.lower()} E_W={energy or 0}"


@pytest.mark.parametrize("row", DIGITS_TABLE, ids=" ".join)
def test_a_row_of_the_scale_on_digits_is_its_runs(row: list[str]) -> None:
    values = pd.DataFrame(DIGITS_RUNS[digits_key(row)])
    assert len(values) == 3
    assert row[2:] == [f"{values[n].mean():.3f} ± {values[n].std():.3f}" for n in range(3)]


def test_what_the_scale_on_digits_does_not_show() -> None:
    """Paired by seed: FedGELA with E_W = 1 over FedAvg, and FedGE with larger scales."""
    runs = {name: np.array(values).T for name, values in DIGITS_RUNS.items()}
    over = runs["fedgela E_W=1"] - runs["fedavg E_W=0"]
    assert not any(interval(own).excludes_zero for own in over)
    said = f"(globally {gain(over[1])}, personally {gain(over[2])}), and no difference is shown."
    assert said in prose(DIGITS)
    for large, small in product((30, 100, 1000), (1, 3, 10)):
        more = runs[f"fedge E_W={large}"] - runs[f"fedge E_W={small}"]
        assert more[0].mean() > 0
        assert not any(interval(own).excludes_zero for own in more)
    assert "and no difference is shown between any of them." in prose(DIGITS)


def test_every_cell_of_the_file_stands_in_a_table_of_digits() -> None:
    assert sorted(map(digits_key, DIGITS_TABLE)) == sorted(DIGITS_RUNS)


SCALES = {
    "FedAvg, local models": {"algorithm": "fedavg"},
    **{f"FedGELA, length 1, E_W {n}": length_one("fedgela", n) for n in ("1", "3", "10", "100")},
    "FedGE, length 1, E_W 100": length_one("fedge", "100"),
    "FedGE, as released": {"algorithm": "fedge"},  # the preset then had the released scale
}


@pytest.mark.parametrize("name", SCALES)
def test_a_row_of_the_scale_on_cifar10_is_its_runs(name: str) -> None:
    corner = next(line for line in CIFAR10.splitlines() if line.startswith("| | two classes: "))
    typed = rows(CIFAR10, corner)
    assert set(typed) == set(SCALES)
    for cell, cells in zip(CELLS, (typed[name][:3], typed[name][3:]), strict=True):
        found = cifar10(cell, **SCALES[name])
        metrics = ("validation/accuracy", GLOBAL, PERSONAL) if found else ()
        assert near(" ".join(cells), [found[0][metric] for metric in metrics])


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return float(np.mean(values)), float(np.std(values, ddof=1))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela"])
def test_a_row_over_three_seeds_is_its_runs(cell: str, algorithm: str) -> None:
    table = rows(CIFAR10, "| | global | paper | personal, own test split | paper |")
    name = {"fedavg": "FedAvg", "fedgela": "FedGELA"}[algorithm]
    ours, paper, personal, paper_personal = table[f"{cell}: {name}"]
    assert near(ours, spread(three_seeds(cell, algorithm, GLOBAL)))
    assert paper == f"{fedgela_runs.paper(cell, algorithm, GLOBAL):.3f}"
    assert paper_personal == f"{fedgela_runs.paper(cell, algorithm, PERSONAL):.3f}"
    numbers = [*spread(three_seeds(cell, algorithm, PERSONAL))]
    if algorithm == "fedavg":
        numbers += spread([run[PERSONAL] for run in cifar10(cell, algorithm="fedavg")])
    assert near(personal, numbers)


def test_what_is_said_of_the_gains_on_cifar10() -> None:
    text = prose(CIFAR10)
    last = [gains(cell, GLOBAL) for cell in CELLS]
    personal = [gains(cell, PERSONAL) for cell in CELLS]
    ahead = [sum(each > 0 for each in own) for own in (*last, *personal)]
    assert ahead == [3, 2, 2, 3]
    assert f"ahead globally on every seed, by {np.mean(last[0]):.3f} in the last round" in text
    assert f"globally on two of three, by {np.mean(last[1]):.3f}, and personally on all" in text
    one, two = (gain(gains(cell, BEST)).lstrip("+") for cell in CELLS)
    paper = [f"{papers_gain(cell, metric):.3f}" for metric in (GLOBAL, PERSONAL) for cell in CELLS]
    said = f"the global gains are {one} and {two} (paper: {paper[0]}, {paper[1]})"
    assert said in text
    (typed,) = pd.Series(text).str.extract(r"over the tuned FedAvg (.*?) \(paper")[0]
    assert near(typed, [*both(personal[0]), *both(personal[1])])
    assert f"{typed} (paper: {paper[2]}, {paper[3]};" in text
    shown = [
        interval(gains(cell, metric)).excludes_zero for metric in (BEST, PERSONAL) for cell in CELLS
    ]
    assert shown == [True, False, False, False]


def test_how_far_the_levels_of_cifar10_are_below_the_papers() -> None:
    lower = [
        fedgela_runs.paper(cell, "fedavg", metric) - np.mean(three_seeds(cell, "fedavg", metric))
        for metric in (GLOBAL, PERSONAL)
        for cell in CELLS
    ]
    assert (
        "FedAvg's levels are {:.3f} and {:.3f} lower globally, {:.3f} and {:.3f} personally"
    ).format(*lower) in prose(CIFAR10)
