"""What the results say about the leaderboard with fresh seeds follows from the files."""

from functools import cache

import pandas as pd
import pytest
from support.result_pages import leaderboard, one_line, seven_cells

from fedexp.reporting.leaderboard.repetition import repetition, verdicts_again
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, best
from fedexp.reporting.leaderboard.standings import conclusions, standings, survivors

TITLE = "All methods again with five fresh seeds"
CORRECTIONS = ("alone", "after Benjamini and Hochberg", "after Holm")


@cache
def frame(contest: str, metric: str = GLOBAL) -> pd.DataFrame:
    return standings(best(seven_cells(contest)), metric)


def counts(contest: str, metric: str = GLOBAL) -> pd.DataFrame:
    own = frame(contest, metric)
    return conclusions(own)


def again(contest: str) -> dict[tuple[str, str], list[int]]:
    """(Accuracy, correction) -> gains, there again, in the same direction, reversed."""
    table = verdicts_again(leaderboard(f"{contest}_fresh"), leaderboard(contest))
    return {(row[0], row[1]): list(map(int, row[2:])) for row in table.rows}


@pytest.mark.parametrize("contest", ["digits", "digits_more"])
def test_the_seeds_are_fresh(contest: str) -> None:
    runs = leaderboard(f"{contest}_fresh")
    assert set(runs["seed"]) == {61, 62, 63, 64, 65}
    assert not set(runs["seed"]) & set(leaderboard(contest)["seed"])
    assert (runs["trial"] == 0).all()


def test_how_many_verdicts_are_there_again() -> None:
    found = again("digits")
    (plain, bh, holm), (own, own_bh, own_holm) = (
        [found[metric, each] for each in CORRECTIONS] for metric in (GLOBAL, PERSONAL)
    )
    said = (
        f"Of {plain[0]} global gains and losses whose interval excluded 0, {plain[1]} have one "
        f"that excludes 0 again; of {bh[0]} that survived Benjamini and Hochberg's correction "
        f"{bh[1]}, of {holm[0]} that survived Holm's {holm[1]}. For personal accuracy it is "
        f"{own[1]} of {own[0]}, {own_bh[1]} of {own_bh[0]} and {own_holm[1]} of {own_holm[0]}. "
        f"None is reversed, and {plain[2] + own[2]} of all {plain[0] + own[0]} means have the "
        "same sign"
    )
    assert said in one_line("leaderboard.md", TITLE)
    assert all(row[3] == 0 for row in found.values())
    text = one_line("leaderboard.md", TITLE)
    assert f"there again** ({holm[1] + own_holm[1]} of {holm[0] + own_holm[0]})" in text
    assert f"in two of three cases ({bh[1] + own_bh[1]} of {bh[0] + own_bh[0]})" in text
    widths = [each.half_width for each in frame("digits_fresh")["gain"].dropna()]
    assert f"wider than ± {pd.Series(widths).median():.3f}" in one_line("leaderboard.md", TITLE)


def test_the_counts_without_the_rows_that_have_another_scale() -> None:
    fresh, earlier = leaderboard("digits_fresh"), leaderboard("digits")
    moved = (fresh["method"] == "fedgela") & fresh["cell"].isin(
        ["digits_dir005", "digits_long_tail"]
    )
    table = verdicts_again(fresh[~moved], earlier)
    (before, again), (own_before, own_again) = (
        next(map(int, row[2:4]) for row in table.rows if row[:2] == [metric, "alone"])
        for metric in (GLOBAL, PERSONAL)
    )
    said = f"without them {again} of {before} and {own_again} of {own_before} are there again."
    assert said in one_line("leaderboard.md", TITLE)


def test_who_is_ahead_globally() -> None:
    own, earlier = counts("digits_fresh"), counts("digits")
    named = own.loc[["fedgen", "fednh", "fedacg", "feddyn_paper"]]
    assert named["ahead"].tolist() == [6, 5, 5, 5]
    assert not named["behind"].any()
    earlier = earlier.loc[own.index]
    both = [((each["ahead"] > 0) & (each["behind"] > 0)).sum() for each in (own, earlier)]
    assert both == [4, 13]
    _, bh, holm = survivors(frame("digits_fresh"))
    compared = int(frame("digits_fresh")["gain"].notna().sum())
    said = (
        f"Of the {len(own)} methods that are compared {(own['behind'] == 0).sum()} are behind in "
        "no cell, and four (before: 13) are ahead in one cell and behind in another. "
        f"{bh} of {compared} comparisons survive Benjamini and Hochberg's correction, "
        f"{holm} Holm's."
    )
    assert said in one_line("leaderboard.md", TITLE)


def test_the_ranks() -> None:
    text = one_line("leaderboard.md", TITLE)
    now, before = (
        frame(each).groupby("method")["rank"].mean() for each in ("digits_fresh", "digits")
    )
    assert now.nsmallest(3).index.tolist() == ["fednh", "fedacg", "fedgen"]
    said = "FedNH has the best mean rank again ({}, before {}), FedACG {} ({}), FedGen {} ({})."
    values = [
        f"{each[name]:.1f}" for name in ("fednh", "fedacg", "fedgen") for each in (now, before)
    ]
    assert said.format(*values) in text
    now, before = (
        frame(each, PERSONAL).groupby("method")["rank"].mean()
        for each in ("digits_fresh", "digits")
    )
    assert now.nsmallest(2).index.tolist() == ["fedetf", "knn_per"]
    said = "FedETF comes first now ({}, before {}) and kNN-Per second ({}, before {})."
    values = [f"{each[name]:.1f}" for name in ("fedetf", "knn_per") for each in (now, before)]
    assert said.format(*values) in text


def test_the_orders_and_the_gains_inside() -> None:
    rows = repetition(leaderboard("digits_fresh"), leaderboard("digits")).rows
    text = one_line("leaderboard.md", TITLE)
    taus = {
        metric: [float(row[3]) for row in rows if row[0] == metric] for metric in (GLOBAL, PERSONAL)
    }
    lows, highs = zip(*((min(each), max(each)) for each in taus.values()), strict=True)
    assert (
        f"between {lows[0]:.2f} and {highs[0]:.2f} globally and between {lows[1]:.2f} and "
        f"{highs[1]:.2f} personally"
    ) in text
    inside = {row[1]: row[5] for row in rows if row[0] == GLOBAL}
    one, tail = inside.pop("digits_one_class"), inside.pop("digits_long_tail")
    found, compared = (sum(int(each.split()[n]) for each in inside.values()) for n in (0, 2))
    said = f"only {one} and {tail} gains are inside the earlier intervals there, and "
    assert f"{said}{found} of {compared} in the other five cells" in text
    fedavg = {
        (each, row["cell"]): f"{row['mean']:.3f}"
        for each in ("digits_fresh", "digits")
        for row in frame(each).query("method == 'fedavg'").to_dict("records")
    }
    values = [
        fedavg[each, f"digits_{cell}"]
        for cell in ("one_class", "long_tail")
        for each in ("digits_fresh", "digits")
    ]
    said = (
        "With one class a client FedAvg has {} in place of {}, with the long tail {} in place of {}"
    )
    assert said.format(*values) in text


def test_the_further_methods() -> None:
    text = one_line("leaderboard.md", TITLE)
    own = counts("digits_more_fresh", PERSONAL)
    assert own.loc[["fedcp", "pfedfda", "fedmd", "fedaws"], "ahead"].tolist() == [0, 1, 3, 3]
    assert own.loc[["fedcp", "pfedfda"], "behind"].tolist() == [0, 0]
    before = counts("digits_more", PERSONAL)
    assert before.loc[["fedcp", "pfedfda", "fedmd", "fedaws"], "ahead"].tolist() == [5, 5, 4, 3]
    elastic = [
        frame(each).query("method == 'elastic' and cell == 'digits_long_tail'").iloc[0]
        for each in ("digits_more_fresh", "digits_more")
    ]
    assert [each["signs"] for each in elastic] == ["+++", ""]
    now, then = (f"{each['gain'].mean:+.3f} ± {each['gain'].half_width:.3f}" for each in elastic)
    said = f"it gains {now} globally, three signs, where no difference was shown ({then})."
    assert said in text
    found = again("digits_more")
    plain, bh = (found[PERSONAL, each] for each in CORRECTIONS[:2])
    assert (
        f"Of {plain[0]} verdicts {plain[1]} are there again, of {bh[0]} that survived Benjamini "
        f"and Hochberg's correction {bh[1]}."
    ) in text
    runs = leaderboard("digits_more_fresh").query("cell == 'digits_dir005' and method == 'pfedfda'")
    low, second, *_ = sorted(runs["personal accuracy"])
    assert f"is {low:.3f} with one seed and at least {second:.3f} with the others" in text
    apple = leaderboard("digits_more_fresh").query("cell == 'digits_dir1' and method == 'apple'")
    assert len(apple) == 4
