"""The effects typed on the page of the factorial experiment on digits are its files'."""

import re

import pandas as pd
import pytest
from generate.results import RESULTS

TEXT = (RESULTS / "factorial_digits.md").read_text().partition("## What was found")[2]
ALONE, EFFECTS = (
    pd.read_csv(RESULTS / "factorial_digits" / f"{name}.csv") for name in ("alone", "effects")
)
CELLS = ("digits_dir005", "digits_two_classes")


def typed(table: pd.DataFrame, column: str, name: str, cell: str) -> str:
    """An effect as the page writes it."""
    [(estimate, half)] = table.loc[
        (table[column] == name) & (table["cell"] == cell), ["estimate", "half_width"]
    ].to_numpy()
    return f"{estimate:+.3f} ± {half:.3f}"


@pytest.mark.parametrize("factor", ["head", "loss", "regularizer", "sampler", "aggregator"])
def test_a_row_of_the_table(factor: str) -> None:
    (row,) = re.findall(rf"^\| `{factor}=\w+` \| (.*) \|$", TEXT, re.MULTILINE)
    expected = []
    for cell in CELLS:
        expected += [typed(ALONE, "factor", factor, cell), typed(EFFECTS, "effect", factor, cell)]
    assert row.split(" | ") == expected


@pytest.mark.parametrize("pair", ["head x regularizer", "regularizer x aggregator"])
def test_an_interaction_in_the_text(pair: str) -> None:
    one, other = (typed(EFFECTS, "effect", pair, cell) for cell in CELLS)
    assert re.search(rf"{re.escape(one)} and {re.escape(other)}", TEXT)
