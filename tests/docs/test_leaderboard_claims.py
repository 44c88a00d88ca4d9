"""What the results say about the leaderboard on digits follows from its file."""

from functools import cache
from typing import Any

import pandas as pd
import pytest
import yaml
from generate.results import RESULTS, ROOT
from support.result_pages import leaderboard, prose, seven_cells, tuned

from fedexp.reporting.interval import Interval, smallest_gain
from fedexp.reporting.leaderboard.controls import BASELINE
from fedexp.reporting.leaderboard.repetition import expected_inside, repetition
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, chosen
from fedexp.reporting.leaderboard.standings import by_mean_rank, conclusions, standings, survivors

CONTESTS = ROOT / "conf" / "experiment" / "leaderboard"
SYSTEMS = {"fednh", "fedsc", "fedgela", "fedptr_s", "hics"}


def methods(contest: str) -> Any:
    """``algorithm`` of the first part of a contest: of digits, the methods with a global model."""
    preset = yaml.safe_load((CONTESTS / f"{contest}.yaml").read_text())
    return preset["hydra"]["sweeper"]["parts"][0]["algorithm"]


def text() -> str:
    """The results in one line."""
    return prose((RESULTS / "leaderboard.md").read_text())


def test_how_many_methods_are_ahead_or_behind() -> None:
    best = tuned(GLOBAL)
    counts = conclusions(best)
    never_behind = int((counts["behind"] == 0).sum())
    both = int(((counts["ahead"] > 0) & (counts["behind"] > 0)).sum())
    assert f"{never_behind} methods are behind FedAvg in no cell" in text()
    assert f"{both} methods are ahead in one cell and behind in another" in text()
    neither = set(counts.index[(counts["ahead"] == 0) & (counts["behind"] == 0)])
    assert neither == {"hics", "moon", "fedlesam", "feddecorr"}


def test_what_survives_a_correction() -> None:
    seven = {name: tuned(name) for name in (GLOBAL, PERSONAL)}
    plain, bh, holm = zip(*map(survivors, seven.values()), strict=True)
    families = [int(frame["gain"].notna().sum()) for frame in seven.values()]
    assert (
        f"{plain[0]} of {families[0]} comparisons of the global accuracy and {plain[1]} of "
        f"{families[1]} of the personal one"
    ) in text()
    assert f"{bh[0]} and {bh[1]} remain, after Holm's {holm[0]} and {holm[1]}." in text()
    counts = conclusions(seven[GLOBAL])
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
    results = leaderboard("digits")
    page = prose((ROOT / "docs" / "leaderboard.md").read_text())
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
    best = tuned(GLOBAL)
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
    ranks = {b: by_mean_rank(tuned(GLOBAL, b)) for b in (1, 4, 16)}
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
    results = leaderboard("digits_more")
    frames = {name: standings(chosen(results, 16), name) for name in (GLOBAL, PERSONAL)}
    plain, bh, holm = zip(*map(survivors, frames.values()), strict=True)
    families = [int(frame["gain"].notna().sum()) for frame in frames.values()]
    assert f"Of {families[0]} comparisons {plain[0]} have an interval that excludes 0" in text()
    assert (bh[0], holm[0]) == (0, 0)
    assert (
        f"Of {families[1]} comparisons {plain[1]} have an interval that excludes 0; {bh[1]} remain "
        f"after Benjamini and Hochberg's correction, {holm[1]} after Holm's"
    ) in text()
    counts = conclusions(frames[PERSONAL])
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
    now, before = leaderboard("digits_again"), leaderboard("digits")
    assert set(now["seed"]) == set(range(61, 71))
    rows = repetition(now, before).rows
    inside, pairs = (sum(int(row[5].split(" of ")[n]) for row in rows) for n in (0, 1))
    assert f"Of the {pairs} new gains over FedAvg {inside} are inside" in text()
    assert f"; {pairs * expected_inside(5, 10):.1f} would be if nothing but chance" in text()
    assert [row[3] for row in rows[:2]] == ["0.80", "0.40"]
    assert [row[7] for row in rows] == ["4 of 4", "3 of 3", "0 of 2", "3 of 3"]


def test_fedap_in_the_cell_with_batch_norm() -> None:
    results = leaderboard("digits_fedap")
    gain = standings(chosen(results, 16), PERSONAL).set_index("method")["gain"]["fedap"]
    assert f"is behind in personal accuracy ({gain.mean:+.3f} ± {gain.half_width:.3f})" in text()
    assert gain.excludes_zero


AHEAD = {
    "fedgen": (7, 0),
    "fednh": (6, 0),
    "fedacg": (6, 0),
    "feddyn_paper": (5, 0),
    "fedyogi": (4, 0),
    "ccvr": (4, 0),
    "fedadagrad": (4, 0),
    "fedptr_s": (2, 0),
    "fedavgm": (3, 2),
    "creff": (0, 3),
}
"""Method -> in how many cells it is ahead and behind in global accuracy."""


@cache
def best(metric: str = GLOBAL, contest: str = "") -> pd.DataFrame:
    """The standings with sixteen trials; of the first table without the cell with BatchNorm."""
    if not contest:
        return tuned(metric)
    results = leaderboard(f"digits{contest}")
    return standings(chosen(results, 16), metric)


def gains(method: str, metric: str = GLOBAL, contest: str = "") -> dict[str, Interval]:
    own = best(metric, contest).query("method == @method").set_index("cell")["gain"]
    return dict(own)


def ahead(method: str, metric: str = GLOBAL, contest: str = "") -> set[str]:
    """The cells, without the name of the data, in which a method is shown to be ahead."""
    own = gains(method, metric, contest).items()
    return {
        cell.removeprefix("digits_") for cell, each in own if each.excludes_zero and each.mean > 0
    }


def behind(method: str, metric: str = GLOBAL, contest: str = "") -> set[str]:
    own = gains(method, metric, contest).items()
    return {
        cell.removeprefix("digits_") for cell, each in own if each.excludes_zero and each.mean < 0
    }


def written(gain: Interval) -> str:
    return f"{gain.mean:+.3f} ± {gain.half_width:.3f}"


@pytest.mark.parametrize("method", AHEAD)
def test_in_how_many_cells_a_named_method_is_ahead_and_behind(method: str) -> None:
    assert (len(ahead(method)), len(behind(method))) == AHEAD[method]


def test_what_the_page_says_of_these_counts() -> None:
    for said in (
        "FedGen is ahead in all seven, FedNH and FedACG in six, level in the seventh "
        "(Dirichlet(1) and feature shift); FedDyn (`feddyn_paper`) is ahead in five, FedYogi, CCVR "
        "and FedAdagrad in four. FedPTR-S is ahead in two and level in five.",
        "FedAvgM is ahead in three cells and behind in two.",
        "No method is behind in all cells",
    ):
        assert said in text()
    counts = conclusions(best())
    assert counts["behind"].max() < 7
    assert "dir1" not in ahead("fednh")
    assert "feature_shift" not in ahead("fedacg")


def test_where_fedgela_fedrcl_and_fedsc_are_ahead_and_what_they_lose() -> None:
    tail = [-gains(each)["digits_long_tail"].mean for each in ("fedgela", "fedrcl")]
    for method in ("fedgela", "fedrcl"):
        assert ahead(method) == {"one_class", "two_classes", "feature_shift"}
        assert behind(method) == {"long_tail"}
    assert f"and lose {tail[0]:.2f} and {tail[1]:.2f} with a long tail." in text()
    assert "are ahead with one class, two classes and feature shift, and lose" in text()
    assert "FedSC is ahead with Dirichlet(0.3), Dirichlet(1) and feature shift" in text()
    assert ahead("fedsc") == {"dir03", "dir1", "feature_shift"}
    assert behind("fedsc") == {"two_classes"}
    two_classes = -gains("fedsc")["digits_two_classes"].mean
    assert f"feature shift and loses {two_classes:.2f} with two classes." in text()


def test_creff_and_ccvr_with_the_long_tail() -> None:
    creff, ccvr = (gains(each)["digits_long_tail"] for each in ("creff", "ccvr"))
    said = f"is level with FedAvg there ({written(creff)}) and behind in three cells."
    assert said in text()
    assert f"CCVR is ahead ({written(ccvr)})" in text()


def test_accuracies_with_one_class_a_client() -> None:
    means = best().query("cell == 'digits_one_class'").set_index("method")["mean"]
    assert means.idxmax() == "fedacg"
    assert f"(FedACG, {means['fedacg']:.3f}; FedAvg has {means['fedavg']:.3f})" in text()
    assert f"nothing is learnt ({means['fedlc']:.3f})" in text()


def test_who_is_ahead_personally() -> None:
    ranks = by_mean_rank(best(PERSONAL))
    assert ranks.index[0] == "knn_per"
    said = f"kNN-Per has the best mean rank ({ranks.iloc[0]:.1f}), is ahead in four cells and"
    assert said in text()
    counted = {
        each: (len(ahead(each, PERSONAL)), behind(each, PERSONAL))
        for each in ("knn_per", "fednh", "fedadmm")
    }
    assert (
        "is ahead in four cells and behind in none. FedNH is ahead in five and behind in none"
    ) in text()
    assert "FedADMM is ahead in four, too, and behind with one class." in text()
    assert counted == {"knn_per": (4, set()), "fednh": (5, set()), "fedadmm": (4, {"one_class"})}
    one_class = best(PERSONAL).query("cell == 'digits_one_class'")["mean"]
    assert f"{(one_class.round(3) == 1).sum()} methods have 1.000" in text()


def test_batch_norm_and_feature_shift() -> None:
    results = leaderboard("digits")
    runs = chosen(results[results["cell"] == "digits_batch_norm"], 16)
    overall, personal = (
        standings(runs, metric).set_index("method")["gain"] for metric in (GLOBAL, PERSONAL)
    )
    fedbn, silobn, fednh = (personal[each] for each in ("fedbn", "silobn", "fednh"))
    assert written(fedbn) == written(silobn)
    could_show = " and ".join(f"{smallest_gain(each):.3f}" for each in (fedbn, fednh))
    said = (
        f"FedSC is ahead in personal accuracy ({written(personal['fedsc'])}); FedBN and SiloBN "
        f"gain {written(fedbn)[1:]} and FedNH {written(fednh)[1:]}, no difference shown with five "
        f"seeds (they could show {could_show}). In global accuracy FedNH is behind "
        f"({written(overall['fednh'])}) and Ditto too ({written(overall['ditto'])})."
    )
    assert said in text()


def test_the_further_methods_in_global_accuracy() -> None:
    fedgc = gains("fedgc", GLOBAL, "_more")["digits_two_classes"]
    assert (
        "FedSR is ahead of FedAvg in three cells (Dirichlet(0.05), Dirichlet(0.3), two classes), "
        "FedAwS in two, elastic aggregation in one. With the long tail FedSR, FedAwS and FedIIR "
        f"are behind, with two classes FedGC ({fedgc.mean:+.3f} ± {fedgc.half_width:.3f})."
    ) in text()
    counted = {each: ahead(each, GLOBAL, "_more") for each in ("fedsr", "fedaws", "elastic")}
    assert counted["fedsr"] == {"dir005", "dir03", "two_classes"}
    assert (len(counted["fedaws"]), len(counted["elastic"])) == (2, 1)
    assert set(best(GLOBAL, "_more")["method"]) > set(counted)
    tail = best(GLOBAL, "_more").query("cell == 'digits_long_tail'").set_index("method")["gain"]
    less = {name for name, gain in tail.dropna().items() if gain.excludes_zero and gain.mean < 0}
    assert less == {"fedsr", "fedaws", "fediir"}
    assert fedgc.excludes_zero
    every = best(GLOBAL, "_more")["gain"].dropna()
    named = 3 + 2 + 1 + len(less) + 1
    assert sum(each.excludes_zero for each in every) == named


def test_who_is_ahead_with_two_classes_a_client() -> None:
    """Five of those that are behind elsewhere, and nine other methods."""
    own = best(PERSONAL, "_more").query("cell == 'digits_two_classes'").set_index("method")
    found = own["gain"].dropna()
    more = {name for name, gain in found.items() if gain.excludes_zero and gain.mean > 0}
    assert more > {"adcol", "feddistill", "fedgh", "fedmtl", "pfl_da"}
    assert len(more) == 5 + 9
    assert not own["signs"].str.contains("+++", regex=False).any()
    assert "ahead, and so are nine other methods" in text()


def test_fine_tuned_fedavg_is_level_in_five_cells() -> None:
    assert "shows no difference in five cells and is behind with Dirichlet(1)" in text()
    own = gains("fedavg personalization=finetune", PERSONAL, "_more")
    assert [cell for cell, gain in own.items() if gain.excludes_zero] == ["digits_dir1"]
    assert len(own) == 6


def test_fedcac_lost_seeds_in_three_cells() -> None:
    results = chosen(leaderboard("digits_more"), 16)
    runs = results[results["method"] == "fedcac"].set_index("cell")
    shown = []
    for cell in ("digits_dir03", "digits_feature_shift"):
        assert runs.loc[cell, "setting"].str.startswith("optimizer.lr=0.2 ").all()
        lost, *others = sorted(runs.loc[cell, PERSONAL])
        shown += [lost, others[0], others[-1]]
    said = (
        "with Dirichlet(0.3) one ends at {:.2f} and the others at {:.2f} to {:.2f}, with feature "
        "shift one at {:.2f} and the others at {:.2f} to {:.2f}."
    )
    assert said.format(*shown) in text()
    results = chosen(leaderboard("digits_more"), 4)
    runs = results[(results["method"] == "fedcac") & (results["cell"] == "digits_dir1")]
    assert (runs["setting"] == "optimizer.lr=0.2").all()
    first, second, *others = sorted(runs[PERSONAL])
    said = "two seeds end at {:.2f} and {:.2f} and the others at {:.2f} to {:.2f}."
    assert said.format(first, second, others[0], others[-1]) in text()


def test_apple_diverged_in_a_trial_and_three_final_runs() -> None:
    results = leaderboard("digits_more")
    assert (
        "diverged in four runs with this rate, which are left out: a trial with two classes, a "
        "final run with the long tail, two with Dirichlet(1)."
    ) in text()
    own = results[results["method"] == "apple"]
    trials = own[own["trial"] > 0].groupby("cell").size()
    assert trials.loc[trials < 16].to_dict() == {"digits_two_classes": 15}
    finals = chosen(own, 16).groupby("cell").size()
    assert finals.loc[finals < 5].to_dict() == {"digits_long_tail": 4, "digits_dir1": 3}


def test_fedgen_goes_from_the_first_place_to_the_fourth() -> None:
    again = best(GLOBAL, "_again").query("cell == 'digits_dir03'")
    before = best().query("cell == 'digits_dir03'")
    before = before[before["method"].isin(again["method"])]
    places = [
        list(each.sort_values("mean", ascending=False)["method"]).index("fedgen") + 1
        for each in (before, again)
    ]
    assert places == [1, 4]
    assert "where FedGen goes from the first place to the fourth." in text()


def test_fedadmm_with_dirichlet_03_and_two_classes() -> None:
    own = gains("fedadmm")
    said = (
        f"behind with Dirichlet(0.3) ({own['digits_dir03'].mean:+.3f}) and ahead with two classes "
        f"({own['digits_two_classes'].mean:+.3f})"
    )
    assert said in text()
    assert (ahead("fedadmm"), behind("fedadmm")) == ({"two_classes"}, {"dir03"})
