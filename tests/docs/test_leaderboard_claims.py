"""What the results say about the leaderboard on digits follows from its file."""

from functools import cache
from typing import Any

import pandas as pd
import yaml
from generate.results import RESULTS, ROOT

from fedexp.reporting.leaderboard.controls import BASELINE
from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.repetition import expected_inside, repetition
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, chosen
from fedexp.reporting.leaderboard.standings import (
    by_mean_rank,
    conclusions,
    standings,
    survivors,
)

CONTESTS = ROOT / "conf" / "experiment" / "leaderboard"
SYSTEMS = {"fednh", "fedsc", "fedgela", "fedptr_s", "hics"}


@cache
def seven_cells() -> pd.DataFrame:
    results = read_csv(RESULTS / "leaderboard_digits" / "leaderboard.csv")
    return results[results["cell"] != "digits_batch_norm"]


def methods(contest: str) -> Any:
    """``algorithm`` of the first part of a contest: of digits, the methods with a global model."""
    preset = yaml.safe_load((CONTESTS / f"{contest}.yaml").read_text())
    return preset["hydra"]["sweeper"]["parts"][0]["algorithm"]


def text() -> str:
    """The results in one line."""
    return " ".join((RESULTS / "leaderboard.md").read_text().split())


def test_how_many_methods_are_ahead_or_behind() -> None:
    best = standings(chosen(seven_cells(), 16), GLOBAL)
    counts = conclusions(best, sorted(best["cell"].unique()))
    never_behind = int((counts["behind"] == 0).sum())
    both = int(((counts["ahead"] > 0) & (counts["behind"] > 0)).sum())
    assert f"{never_behind} methods are behind FedAvg in no cell" in text()
    assert f"{both} methods are ahead in one cell and behind in another" in text()
    neither = set(counts.index[(counts["ahead"] == 0) & (counts["behind"] == 0)])
    assert neither == {"hics", "moon", "fedlesam", "feddecorr"}


def test_what_survives_a_correction() -> None:
    seven = {name: standings(chosen(seven_cells(), 16), name) for name in (GLOBAL, PERSONAL)}
    plain, bh, holm = zip(*map(survivors, seven.values()), strict=True)
    families = [int(frame["gain"].notna().sum()) for frame in seven.values()]
    assert (
        f"{plain[0]} of {families[0]} comparisons of the global accuracy and {plain[1]} of "
        f"{families[1]} of the personal one"
    ) in text()
    assert f"{bh[0]} and {bh[1]} remain, after Holm's {holm[0]} and {holm[1]}." in text()
    counts = conclusions(seven[GLOBAL], sorted(seven[GLOBAL]["cell"].unique()))
    ahead, behind = counts["ahead, BH"], counts["behind, BH"]
    named = ["fedacg", "fedgen", "fednh", "feddyn_paper"]
    assert ahead[named].tolist() == [6, 6, 5, 4]
    assert not behind[named].any()
    both = int(((ahead > 0) & (behind > 0)).sum())
    assert f"{int((behind == 0).sum())} methods are behind in no cell, and {both} instead" in text()
    assert counts["ahead, Holm"].max() == 1
    signs = seven[GLOBAL].set_index(["cell", "method"])["signs"]
    assert signs["digits_long_tail", "ccvr"] == "++"


def test_the_page_of_the_leaderboard_says_what_survives() -> None:
    """The page's families have all eight cells."""
    results = read_csv(RESULTS / "leaderboard_digits" / "leaderboard.csv")
    page = " ".join((ROOT / "docs" / "leaderboard.md").read_text().split())
    for metric in (GLOBAL, PERSONAL):
        frame = standings(chosen(results, 16), metric)
        plain, bh, holm = survivors(frame)
        said = {
            GLOBAL: f"comparisons of the global accuracy {plain} have an interval that excludes 0; "
            f"{bh} remain after Benjamini and Hochberg's correction, {holm} after Holm's",
            PERSONAL: f"of the personal accuracy it is {plain}, {bh} and {holm}.",
        }
        assert f"f the {frame['gain'].notna().sum()} {said[metric]}" in page


def test_how_many_methods_are_near_the_best() -> None:
    best = standings(chosen(seven_cells(), 16), GLOBAL)
    top = best.groupby("cell")["mean"].transform("max")
    near = best[best["mean"] >= top - 0.02].groupby("cell").size()
    total = best["method"].nunique()
    assert (
        f"within 0.02 of the best are {near['digits_dir1']} of {total} methods with "
        f"Dirichlet(1) and {near['digits_dir03']} with Dirichlet(0.3)"
    ) in text()
    cells = ["digits_dir005", "digits_two_classes", "digits_long_tail", "digits_one_class"]
    assert near[cells].tolist() == [3, 4, 2, 1]


def test_the_order_depends_on_the_budget() -> None:
    ranks = {b: by_mean_rank(standings(chosen(seven_cells(), b), GLOBAL)) for b in (1, 4, 16)}
    assert [ranks[b].index[0] for b in (1, 4, 16)] == ["fednh", "fedacg", "fednh"]
    first, second, third = (f"{ranks[b].iloc[0]:.1f}" for b in (1, 4, 16))
    said = (
        f"presets' values ({first}) and with sixteen trials ({third}), FedACG with four ({second})"
    )
    assert said in text()
    places = [list(ranks[b].index).index("fedetf") + 1 for b in (1, 4, 16)]
    assert places == [3, 7, 18]


def test_two_others_on_cifar10_have_the_best_validation_ranks() -> None:
    scores = seven_cells().query("trial > 0").groupby(["cell", "method"])["score"].max()
    ranks = scores.unstack("cell").reindex(methods("digits")).dropna().rank(ascending=False)
    others = ranks.mean(axis=1).drop([*SYSTEMS, BASELINE], errors="ignore").nsmallest(2).index
    assert set(methods("cifar10").split(",")) == SYSTEMS | {BASELINE, *others}


def test_what_the_table_of_further_methods_shows() -> None:
    results = read_csv(RESULTS / "leaderboard_digits_more" / "leaderboard.csv")
    frames = {name: standings(chosen(results, 16), name) for name in (GLOBAL, PERSONAL)}
    plain, bh, holm = zip(*map(survivors, frames.values()), strict=True)
    families = [int(frame["gain"].notna().sum()) for frame in frames.values()]
    assert f"Of {families[0]} comparisons {plain[0]} have an interval that excludes 0" in text()
    assert (bh[0], holm[0]) == (0, 0)
    assert (
        f"Of {families[1]} comparisons {plain[1]} have an interval that excludes 0; {bh[1]} remain "
        f"after Benjamini and Hochberg's correction, {holm[1]} after Holm's"
    ) in text()
    counts = conclusions(frames[PERSONAL], sorted(frames[PERSONAL]["cell"].unique()))
    assert counts["ahead"].nlargest(5).to_dict() == dict(
        zip(["fedcp", "pfedfda", "fedmd", "fedaws", "flute"], [5, 5, 4, 3, 3], strict=True)
    )
    assert counts["behind, Holm"].sum() == holm[1]
    five = {"adcol", "fedkd", "fedgh", "feddistill", "fml", "fedmtl", "pfedla", "pfl_da"}
    assert set(counts.index[counts["behind"] == 5]) == five
    tuned = frames[PERSONAL].set_index(["method", "cell"])["gain"]
    gain = tuned["fedavg personalization=finetune", "digits_dir1"]
    assert f"behind with Dirichlet(1) ({gain.mean:+.3f} ± {gain.half_width:.3f})" in text()


def test_what_other_seeds_confirm() -> None:
    names = [f"leaderboard_digits{each}" for each in ("_again", "")]
    now, before = (read_csv(RESULTS / name / "leaderboard.csv") for name in names)
    assert set(now["seed"]) == set(range(61, 71))
    rows = repetition(now, before).rows
    inside, pairs = (sum(int(row[5].split(" of ")[n]) for row in rows) for n in (0, 1))
    assert f"Of the {pairs} new gains over FedAvg {inside} are inside" in text()
    assert f"; {pairs * expected_inside(5, 10):.1f} would be if nothing but chance" in text()
    assert [row[3] for row in rows[:2]] == ["0.80", "0.40"]
    assert [row[7] for row in rows] == ["4 of 4", "3 of 3", "0 of 2", "3 of 3"]


def test_fedap_in_the_cell_with_batch_norm() -> None:
    results = read_csv(RESULTS / "leaderboard_digits_fedap" / "leaderboard.csv")
    gain = standings(chosen(results, 16), PERSONAL).set_index("method")["gain"]["fedap"]
    assert f"is behind in personal accuracy ({gain.mean:+.3f} ± {gain.half_width:.3f})" in text()
    assert gain.excludes_zero
