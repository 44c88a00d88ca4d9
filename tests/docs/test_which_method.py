"""The page that says which method to try first follows from the leaderboard's runs."""

import math
import re

import pandas as pd
from generate.results import RESULTS, ROOT
from generate.which_method import _first, which_method

ANSWERS = which_method("digits")


def section(title: str) -> str:
    return ANSWERS.partition(f"## {title}\n")[2].partition("\n## ")[0]


def final_runs(cell: str) -> pd.DataFrame:
    runs = pd.read_csv(RESULTS / "leaderboard_digits" / "leaderboard.csv")
    return runs[(runs["cell"] == cell) & (runs["trial"] == 0)]


def test_a_gain_is_the_mean_of_the_paired_differences() -> None:
    runs = final_runs("digits_one_class").fillna({"setting": ""})
    own = runs[(runs["method"] == "fedacg") & (runs["setting"] == "")].set_index("seed")
    row = re.search(r"`fedacg` \| preset \| (\S+) \| (\S+) ±", section("One class a client"))
    assert row is not None
    assert float(row[1]) == round(own["global accuracy"].mean(), 3)
    baselines = runs[runs["method"] == "fedavg"].groupby("setting")
    gains = [
        (own["global accuracy"] - each.set_index("seed")["global accuracy"]).mean()
        for _, each in baselines
    ]
    assert min(abs(gain - float(row[2])) for gain in gains) < 5e-4


def test_the_first_to_try_is_cheap_and_no_cheap_method_gains_more() -> None:
    found = re.findall(r"try `(\w+)` first([;,]).*?\n\n(.*?)(?:\n\n|$)", ANSWERS, flags=re.S)
    assert len(found) > 8
    for first, sign, table in found:
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")[3:]]
        cheap = [row for row in rows if max(float(row[6]), float(row[7])) <= 2]
        again = [row[0] for row in cheap if is_ahead(row[5])]
        assert (again or [row[0] for row in cheap])[:1] in ([f"`{first}`"], [])
        assert not (sign == "," and again)
        assert all(row[4].startswith("++") for row in rows)


def is_ahead(gain: str) -> bool:
    mean, _, width = gain.partition(" ± ")
    return bool(width) and float(mean) > float(width)


def test_the_gain_with_fresh_seeds_is_of_the_same_setting_and_other_runs() -> None:
    runs = pd.read_csv(RESULTS / "leaderboard_digits_fresh" / "leaderboard.csv")
    own = runs[(runs["cell"] == "digits_two_classes")].set_index("seed")
    assert set(own.index) == {61, 62, 63, 64, 65}
    fedgela, fedavg = (
        own[own["method"] == name]["global accuracy"] for name in ("fedgela", "fedavg")
    )
    row = next(
        line for line in section("Two classes a client").splitlines() if "| `fedgela` |" in line
    )
    assert "| `optimizer.lr=0.06 head.energy=10` |" in row
    assert f"| {(fedgela - fedavg).mean():+.3f} ± " in row


def test_a_skew_without_fresh_seeds_is_told() -> None:
    fresh = pd.read_csv(RESULTS / "leaderboard_digits_fresh" / "leaderboard.csv")
    every = pd.read_csv(RESULTS / "leaderboard_digits" / "leaderboard.csv")
    assert {*every["cell"]} - {*fresh["cell"]} == {"digits_batch_norm"}
    page = (ROOT / "docs" / "which_method.md").read_text()
    assert "The skew with BatchNorm was not repeated: its column is empty." in page
    own = {"method": "mine", "fresh": math.nan}
    assert _first([own]) == "try `mine` first, although fresh seeds have not run"


def test_methods_tuned_for_personal_accuracy_are_not_compared_by_the_global_one() -> None:
    fresh = pd.read_csv(RESULTS / "leaderboard_digits_fresh" / "leaderboard.csv")
    personal = fresh[fresh["objective"].str.endswith("personal_accuracy")]["method"].unique()
    assert "per_fedavg" in personal
    shift = section("Each client its own contrast and brightness; the labels are dealt at random")
    whole = shift.partition("**A model for each client:**")[0]
    assert "| `fedrcl` |" in whole
    assert not [name for name in personal if f"`{name}`" in whole]


def test_a_skew_where_nothing_is_ahead_says_so() -> None:
    assert "no method is shown to be ahead of `fedavg` (1.000)" in section("One class a client")
