"""The effects typed on the pages of the factorial experiments are those of their files."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pytest
from generate.results import RESULTS, ROOT
from support.result_pages import gain, prose

from fedexp.reporting.families import corrected

FACTORS = ("head", "loss", "regularizer", "sampler", "aggregator")
OTHERS = ("loss", "sampler", "aggregator")


@dataclass(frozen=True)
class Page:
    """A page, the folder with its numbers, and its cells in the order of the table."""

    name: str
    folder: str
    cells: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        return (RESULTS / self.name).read_text().partition("## What was found")[2]

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(RESULTS / self.folder / f"{name}.csv")

    def typed(self, table: str, column: str, name: str, cell: str) -> str:
        """An effect as the page writes it."""
        frame = self.table(table)
        is_it = (frame[column] == name) & (frame["cell"] == cell)
        [(estimate, half)] = frame.loc[is_it, ["estimate", "half_width"]].to_numpy()
        return f"{estimate:+.3f} ± {half:.3f}"


DIGITS = Page("factorial_digits.md", "factorial_digits", ("digits_dir005", "digits_two_classes"))
CIFAR10 = Page("factorial.md", "factorial_cifar10", ("cifar10_dir03",))


@pytest.mark.parametrize("page", [DIGITS, CIFAR10], ids=lambda page: page.folder)
@pytest.mark.parametrize("factor", FACTORS)
def test_a_row_of_the_table(page: Page, factor: str) -> None:
    (row,) = re.findall(rf"^\| `{factor}=\w+` \| (.*) \|$", page.text, re.MULTILINE)
    expected = []
    for cell in page.cells:
        expected += [page.typed("alone", "factor", factor, cell)]
        expected += [page.typed("effects", "effect", factor, cell)]
    if page is CIFAR10:
        expected += page.table("effects").set_index("effect").loc[[factor], "verdict"].tolist()
    assert row.split(" | ") == expected


@pytest.mark.parametrize("pair", ["head x regularizer", "regularizer x aggregator"])
def test_an_interaction_on_digits(pair: str) -> None:
    one, other = (DIGITS.typed("effects", "effect", pair, cell) for cell in DIGITS.cells)
    assert re.search(rf"{re.escape(one)} and {re.escape(other)}", DIGITS.text)


@pytest.mark.parametrize(
    "pair", ["head x regularizer", "head x loss", "regularizer x aggregator", "loss x sampler"]
)
def test_an_interaction_on_cifar10(pair: str) -> None:
    effect = CIFAR10.typed("effects", "effect", pair, *CIFAR10.cells)
    assert f"`{pair}` is {effect}" in prose(CIFAR10.text)


def test_the_other_interactions_on_cifar10_are_small() -> None:
    effects = CIFAR10.table("effects").set_index("effect")["verdict"]
    pairs = effects[effects.index.str.contains(" x ")]
    assert (pairs == "smaller than 0.015").sum() == 6
    assert "The other six interactions are smaller than 0.015." in prose(CIFAR10.text)


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        (
            "head",
            "regularizer",
            "{low low} with neither, {high low} with the head, {low high} with FedDyn, and "
            "{high high} with both",
        ),
        (
            "head",
            "loss",
            "With the linear head the mean falls from {low low} to {low high}, with FedNH's head "
            "it is {high low} and {high high}",
        ),
        (
            "loss",
            "sampler",
            "the mean rises from {low low} to {low high} and stays at {high low}",
        ),
    ],
)
def test_the_means_of_two_factors_on_cifar10(one: str, other: str, sentence: str) -> None:
    means = CIFAR10.table("runs").groupby([one, other])["value"].mean()
    typed = {f"{a} {b}": f"{value:.3f}" for (a, b), value in means.items()}
    for levels, value in typed.items():
        sentence = sentence.replace(f"{{{levels}}}", value)
    assert sentence in prose(CIFAR10.text)
    assert (one, other) != ("loss", "sampler") or typed["high low"] == typed["high high"]


def test_what_the_checks_say_on_cifar10() -> None:
    effects = CIFAR10.table("effects").set_index("effect")
    shown = effects[effects["verdict"] != "smaller than 0.015"]
    unconfirmed = shown.loc[shown["p_by_seed"] >= 0.05, "p_by_seed"]
    assert unconfirmed.index.tolist() == ["sampler"]
    text = prose(CIFAR10.text)
    assert f"does not show (p {unconfirmed['sampler']:.3f})" in text
    alone = CIFAR10.table("alone").set_index("factor").assign(by_seed=by_seed(CIFAR10, 0))
    model, seeds = alone.loc["aggregator", ["p_corrected", "by_seed"]]
    assert f"(p {model:.3f} after Holm's correction, by seed {seeds:.3f})" in text
    plain, holm = alone.loc["sampler", ["p_by_seed", "by_seed"]]
    said = f"added alone it has p {plain:.3f} by seed, {holm:.3f} after Holm's correction."
    assert said in text
    assert holm > 0.05
    assert "by seed not shown after Holm's correction" in (RESULTS / "README.md").read_text()


def test_what_the_check_by_seed_says_on_digits() -> None:
    alone = DIGITS.table("alone").query("cell == 'digits_dir005'").set_index("factor")
    model = alone.loc["sampler", "p_corrected"]
    seeds = by_seed(DIGITS, 0)["sampler"]
    said = f"(p {model:.3f}; by seed {seeds:.3f}, both after Holm's correction)"
    assert said in prose(DIGITS.text)


def by_seed(page: Page, cell: int) -> pd.Series:
    """Factor -> Holm's p-value over the estimates that the seeds give of the part alone."""
    alone = page.table("alone")
    own = alone[alone["cell"] == page.cells[cell]].set_index("factor")["p_by_seed"]
    return pd.Series(corrected(own.tolist())[1], own.index)


def beside_feddyn(effects: pd.DataFrame, others: Sequence[str] = ()) -> tuple[float, float]:
    """What FedNH's head adds with FedDyn, without the parts in ``others``: estimate, half width.

    A sum of n effects, which all have the same standard error, has sqrt(n) times this error.
    """
    own = effects.set_index("effect")
    estimate = own.loc[["head", "head x regularizer"], "estimate"].sum()
    estimate -= own.loc[[f"head x {other}" for other in others], "estimate"].sum()
    return estimate, math.sqrt(2 + len(others)) * own.loc["head", "half_width"]


def test_what_fednhs_head_does_with_feddyn() -> None:
    effects = CIFAR10.table("effects")
    average, alone = beside_feddyn(effects), beside_feddyn(effects, OTHERS)
    assert average[0] < -average[1]
    assert alone[0] < -alone[1]
    cost, more = (f"{-estimate:.3f} ± {half:.3f}" for estimate, half in (average, alone))
    text = prose(CIFAR10.text)
    assert f"with FedDyn, the head costs {cost} on average over the other parts." in text
    assert f"Beside FedDyn alone it costs {more}, as the model estimates" in text
    row = f"with FedDyn, FedNH's head costs {cost} on average over the others ("
    assert row in (RESULTS / "README.md").read_text()
    page = prose((ROOT / "docs" / "which_method.md").read_text())
    assert (
        f"it costs {more} there, as the experiment's model estimates, and {cost} on average" in page
    )
    runs = CIFAR10.table("runs").query("head == 'high' and regularizer == 'high'")
    assert not (runs[list(OTHERS)] == "low").all(axis=1).any()  # no run has these two parts alone


@pytest.mark.parametrize("cell", DIGITS.cells)
def test_what_fednhs_head_does_with_feddyn_on_digits(cell: str) -> None:
    """It adds little or nothing."""
    effects = DIGITS.table("effects").query("cell == @cell")
    for estimate, half in (beside_feddyn(effects), beside_feddyn(effects, OTHERS)):
        assert estimate + half > 0
        assert abs(estimate) < 0.015


@pytest.mark.parametrize("page", [DIGITS, CIFAR10], ids=lambda page: page.folder)
def test_feddyn_has_the_largest_estimate_alone_but_on_digits_it_may_be_the_head(page: Page) -> None:
    """Alone, two parts differ by a sum of eight effects: their own and three interactions each."""
    for cell in page.cells:
        alone, effects = (page.table(name).groupby("cell") for name in ("alone", "effects"))
        estimates = alone.get_group(cell).set_index("factor")["estimate"]
        assert estimates.idxmax() == "regularizer"
        least = math.sqrt(8) * effects.get_group(cell)["half_width"].iloc[0]
        is_told_apart = estimates["regularizer"] - estimates["head"] > least
        assert is_told_apart == (page is CIFAR10)
    said = "FedDyn's regularizer has the largest estimate in all three cells, but on digits it is"
    assert f"{said} not told apart from the head." in prose(CIFAR10.text)
    which = prose((ROOT / "docs" / "which_method.md").read_text())
    assert "FedDyn's regularizer or FedNH's head is the part to add first" in which


def test_the_check_of_the_precision_on_cifar10() -> None:
    keys = ["combination", "seed"]
    bits32, runs = (CIFAR10.table(name).set_index(keys)["value"] for name in ("precision", "runs"))
    changes = (bits32 - runs.reindex(bits32.index)).unstack()
    momentum, head = changes.loc[1], changes.loc[9]
    text = prose(CIFAR10.text)
    assert f"server momentum alone changes by {gain(momentum)}" in text
    assert f"FedNH's head alone by {gain(head)} (three seeds" in text
    assert f"The two changes differ by {gain(head - momentum)}. This interval holds 0" in text


def test_the_ends_of_the_grid_on_cifar10() -> None:
    chosen = CIFAR10.table("chosen")
    lowest = chosen[chosen["setting"] == "optimizer.lr=0.001"]
    assert len(lowest) == 2
    assert (lowest[["head", "regularizer"]] == "high").to_numpy().all()
    assert not (chosen["setting"] == "optimizer.lr=0.1").any()
    assert "two combinations chose the lowest rate of the grid, 0.001" in prose(CIFAR10.text)
