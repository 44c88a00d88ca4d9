"""The page of a contest: tables in Markdown, made from the results."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedexp.reporting.interval import Interval, smallest_gain
from fedexp.reporting.leaderboard.controls import BASELINE
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, budgets_of, chosen
from fedexp.reporting.leaderboard.standings import (
    by_mean_rank,
    conclusions,
    over_controls,
    ranked_cells,
    standings,
    survivors,
)
from fedexp.reporting.markdown import markdown
from fedexp.reporting.table import Table

METRICS = (GLOBAL, PERSONAL)
_SIGNS = (
    "++ or --: also after the correction of Benjamini and Hochberg for all comparisons of this "
    "table; +++ or ---: also after Holm's correction."
)
_CONTROLS = (
    f"A control is {BASELINE} with the method's recipe (its optimizer, clipping and weights of "
    f"clients) and without its idea. Methods without a row over another control are compared with "
    f"{BASELINE} alone. The signs in the rows over other controls are corrected for all "
    "comparisons in these rows."
)
_CHOICE = (
    "After trials the intervals are those of the chosen settings; that trials with other seeds "
    "might have chosen other settings is not in them."
)


def cells_of(results: pd.DataFrame) -> list[str]:
    """The cells (experiments) with final runs."""
    return sorted(results.loc[results["trial"] == 0, "cell"].unique())


def tables(results: pd.DataFrame) -> Iterator[Table]:
    """The tables of the page, without those that would be empty.

    Without trials, there is no table of ranks by budget and none of settings.
    """
    cells, budgets = cells_of(results), budgets_of(results)
    has_trials = bool((results["trial"] > 0).any())
    finals = {budget: chosen(results, budget) for budget in budgets}
    for metric in METRICS:
        by_budget = {budget: standings(runs, metric) for budget, runs in finals.items()}
        best = by_budget[budgets[-1]]
        if best.empty:
            continue
        yield _accuracies(best, cells, metric)
        if has_trials:
            yield _ranks(by_budget, metric)
        if (best["seeds"] > 1).any() and best["gain"].notna().any():
            over = over_controls(finals[budgets[-1]], metric)
            yield _gains(best, over, cells, metric)
            yield _conclusions(best, metric)
    yield _costs(finals[budgets[-1]])
    if has_trials:
        yield _settings(results, cells, budgets[-1])


def page(results: pd.DataFrame) -> str:
    """All tables as Markdown, and the numbers of runs."""
    cells = cells_of(results)
    is_shown = results["cell"].isin(cells)
    shown, begun = results[is_shown], int((~is_shown).sum())
    trials = int((shown["trial"] > 0).sum())
    finals = len(shown) - trials
    tuned = f"trials: {trials}; runs with the chosen settings" if trials else "runs"
    hours = shown["seconds"].sum() / 3600
    head = (
        f"Cells: {len(cells)}; methods: {shown['method'].nunique()}; {tuned}: {finals}; hours of "
        f"training: {hours:.1f}.\n"
    )
    if begun:
        head += f"\nFurther trials, of cells without final runs: {begun}.\n"
    return "\n".join([head, *map(markdown, tables(results))])


def _accuracies(frame: pd.DataFrame, cells: Sequence[str], metric: str) -> Table:
    """The table of accuracies, mean ± deviation: a row for each method, a column for each cell."""
    ranks = by_mean_rank(frame)
    found = {(row["cell"], row["method"]): row for row in frame.to_dict("records")}
    rows = []
    for method in [*ranks.index, *sorted(set(frame["method"]) - set(ranks.index))]:
        texts = [_accuracy(found.get((cell, method))) for cell in cells]
        rows.append([method, f"{ranks[method]:.1f}" if method in ranks else "", *texts])
    notes = ["One seed: no deviations and no intervals. After trials, with the best setting."]
    if (frame["seeds"] > 1).any():
        notes = ["Mean ± standard deviation over seeds. After trials, with the best setting."]
        interval = "the 95 % interval of the paired differences to fedavg, seed by seed,"
        notes.append(f"With + (ahead) or - (behind) {interval} excludes 0.")
        notes += [_SIGNS, _survivors(frame)]
        if any(gain is not None and gain.n == 2 for gain in frame["gain"]):
            notes.append("Two pairs of runs are not tested: no sign, whatever the interval.")
        told = [_could_show(frame), _not_compared(frame, metric), _few_seeds(frame)]
        notes += list(filter(None, told))
    if left_out := _unranked(frame, cells):
        notes.append(left_out)
    return Table(metric.capitalize(), ["method", "mean rank", *cells], rows, notes=notes)


def _accuracy(row: Mapping[Hashable, Any] | None) -> str:
    if row is None:
        return ""
    deviation = f" ± {row['std']:.3f}" if row["seeds"] > 1 else ""
    return f"{row['mean']:.3f}{deviation} {row['signs']}".rstrip()


def _gains(best: pd.DataFrame, over: pd.DataFrame, cells: Sequence[str], metric: str) -> Table:
    """The table of gains over FedAvg and, in a second row, over the method's own control."""
    order = {method: place for place, method in enumerate(by_mean_rank(best).index)}
    frames = [best[best["gain"].notna()].assign(control=BASELINE), over[over["gain"].notna()]]
    found = {
        (row["method"], row["control"], row["cell"]): f"{_interval(row['gain'])} {row['signs']}"
        for frame in frames
        for row in frame.to_dict("records")
    }
    pairs = dict.fromkeys((method, control) for method, control, _ in found)
    rows = [
        [method, control, *(found.get((method, control, cell), "").rstrip() for cell in cells)]
        for method, control in sorted(pairs, key=lambda pair: order.get(pair[0], len(order)))
    ]
    notes = ["Mean of the paired differences, seed by seed, ± half of its 95 % interval.", _CHOICE]
    title = f"{metric.capitalize()}: gains over {BASELINE}"
    if len(over):
        notes.append(_CONTROLS)
        title += " and over controls"
    return Table(title, ["method", "over", *cells], rows, notes=notes)


def _interval(gain: Interval) -> str:
    half = f" ± {gain.half_width:.3f}" if gain.n > 1 else ""
    return f"{gain.mean:+.3f}{half}"


def _survivors(frame: pd.DataFrame) -> str:
    plain, bh, holm = survivors(frame)
    return (
        f"Of {len(_tested(frame))} comparisons {plain} have an interval that excludes 0; "
        f"{bh} remain after Benjamini and Hochberg's correction, {holm} after Holm's."
    )


def _could_show(frame: pd.DataFrame) -> str:
    """What the comparisons without a sign could have shown; empty if all have a sign.

    A method with the baseline's own model differs in no seed; it could not have shown anything.
    """
    level = _tested(frame[frame["signs"] == ""])
    smallest = level[[gain.has_spread for gain in level]].map(smallest_gain).median()
    if math.isnan(smallest):
        return ""
    return (
        f"Without a sign no difference is shown; half of these comparisons could have shown a gain "
        f"of {smallest:.3f} with 80 % power."
    )


def _tested(frame: pd.DataFrame) -> pd.Series:
    """The gains that are tested."""
    return frame["gain"][[gain is not None and gain.is_tested for gain in frame["gain"]]]


def _few_seeds(frame: pd.DataFrame) -> str:
    """Names the methods with fewer seeds than others of their cell; empty if there are none."""
    most = frame.groupby("cell")["seeds"].transform("max")
    rows = frame[frame["seeds"] < most].to_dict("records")
    if not rows:
        return ""
    names = ", ".join(f"{row['method']} in {row['cell']} ({row['seeds']})" for row in rows)
    return f"Fewer seeds than the others of the cell, as runs are missing: {names}."


def _unranked(frame: pd.DataFrame, cells: Sequence[str]) -> str:
    """Names the cells that the mean rank leaves out; empty if there are none."""
    ranked = ranked_cells(frame)
    if not (left := [cell for cell in cells if cell not in ranked]):
        return ""
    why = "cells that fewer than half of the methods have"
    return f"The mean rank leaves out {why}: {', '.join(left)}."


def _not_compared(frame: pd.DataFrame, metric: str) -> str:
    """Names the methods without verdicts; empty if all are comparable."""
    names = sorted(frame.loc[~frame["comparable"], "method"].unique())
    if not names:
        return ""
    return (
        f"Tuned for another accuracy than the {metric}, and therefore without a sign and not "
        f"compared with {BASELINE}: {', '.join(names)}."
    )


def _ranks(frames: dict[int, pd.DataFrame], metric: str) -> Table:
    """The table of mean ranks over cells: a row for each method, a column for each budget."""
    columns = [f"trials: {budget}" for budget in frames]
    ranks = pd.concat(map(by_mean_rank, frames.values()), axis=1, keys=columns)
    rows = [
        [str(method), *(_number(rank, 1) for rank in own)]
        for method, own in ranks.sort_values(columns[-1]).iterrows()
    ]
    title = f"{metric.capitalize()}: mean rank by the number of trials"
    return Table(title, ["method", *columns], rows)


def _conclusions(frame: pd.DataFrame, metric: str) -> Table:
    """The table that counts the cells where a method is ahead of, level with or behind FedAvg."""
    counts = conclusions(frame).sort_values(["ahead", "behind"], ascending=[False, True])
    rows = [[str(method), *map(str, own)] for method, own in counts.iterrows()]
    what = "number of cells in which the interval against fedavg excludes 0"
    return Table(f"{metric.capitalize()}: {what}", ["method", *counts.columns], rows)


def _costs(finals: pd.DataFrame) -> Table:
    """The table of fairness, bytes and seconds: means over cells and seeds."""
    names = ["worst tenth", "gini", "megabytes", "seconds"]
    means = finals.groupby("method")[names].mean()
    ordered = means.sort_values("worst tenth", ascending=False)
    rows = [
        [str(method), *map(_number, own, (3, 3, 1, 1))]
        for method, *own in ordered.itertuples(name=None)
    ]
    notes = [
        "Means over seeds and over the cells in which the method has run, so that methods of other "
        "cells cannot be compared. Worst tenth and Gini are of the personal accuracies."
    ]
    return Table("Fairness and costs of a run", ["method", *names], rows, notes=notes)


def _settings(results: pd.DataFrame, cells: Sequence[str], budget: int) -> Table:
    """The table of chosen settings; a blank cell means the preset without changes."""
    best = chosen(results, budget).drop_duplicates(["cell", "method"])
    table = best.pivot(index="method", columns="cell", values="setting")
    table = table.reindex(columns=list(cells)).fillna("not run")
    rows = [[str(method), *own] for method, own in table.iterrows()]
    return Table("Chosen settings", ["method", *cells], rows)


def _number(value: float, digits: int) -> str:
    """A number with so many decimals; empty for NaN."""
    return "" if math.isnan(value) else f"{value:.{digits}f}"
