"""The tables of a factorial experiment: which part to add first, effects, and chosen settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedexp.reporting.factorial.design import HIGH, LOW, Design
from fedexp.reporting.factorial.effects import Fit
from fedexp.reporting.factorial.responses import Responses
from fedexp.reporting.interval import Interval
from fedexp.reporting.table import Table, with_interval

_METRIC = "global/accuracy"
"""Effects are shown with four decimals, like accuracies."""
_FIRST = (
    "added alone: the model's effect of the part if all other factors are low; main effect: its "
    "mean effect over the other factors' levels. ± is half of the 95 % interval; p is Holm's, over "
    "the effects of its column. p alone by seed: a t-test over the seeds' own estimates, which "
    "needs no common variance and is not corrected. The verdict is that of the main effect."
)
_EFFECTS = (
    "a x b: half of what b high instead of low adds to the effect of a. p corrected: Holm's over "
    "the main effects, Benjamini and Hochberg's over the interactions. p by seed: a t-test over "
    "the seeds' own estimates, which needs no common variance."
)


def first_table(cell: str, fit: Fit, better: str) -> Table:
    """The parts, the one that makes the plain method best first; see ``Responses.better``."""
    main = {row["effect"]: row for row in fit.table.to_dict("records")}
    rows = []
    for row in fit.alone.sort_values("estimate", ascending=better == "lower").to_dict("records"):
        factor = str(row["factor"])
        own = main[factor]
        rows.append(
            [
                _level(fit.design, factor, HIGH),
                _estimate(row["estimate"], row["half_width"], fit.seeds),
                _p(row["p_corrected"]),
                _p(row["p_by_seed"]),
                _estimate(own["estimate"], own["half_width"], fit.seeds),
                _p(own["p_corrected"]),
                str(own["verdict"]),
                _level(fit.design, factor, LOW),
            ]
        )
    alone = ["added alone", "p alone", "p alone by seed"]
    columns = ["part", *alone, "main effect", "p main", "verdict", "in place of"]
    optional = ("in place of", "p alone by seed", "p alone", "p main")
    return Table(
        f"{cell}: which part to add first",
        columns,
        rows,
        notes=[_FIRST, *_noise(fit)],
        optional=optional,
    )


def effects_table(cell: str, fit: Fit) -> Table:
    """All effects, main effects first."""
    rows = [
        [
            str(row["effect"]),
            _estimate(row["estimate"], row["half_width"], fit.seeds),
            _p(row["p_value"]),
            _p(row["p_corrected"]),
            _p(row["p_by_seed"]),
            str(row["verdict"]),
        ]
        for row in fit.table.to_dict("records")
    ]
    columns = ["effect", "estimate", "p", "p corrected", "p by seed", "verdict"]
    notes = [_EFFECTS]
    if (resolution := fit.design.resolution) is not None:
        notes.append(
            f"The design has resolution {resolution}: an effect of two factors cannot be told from "
            f"a product of {resolution - 2}, nor a main effect from a product of {resolution - 1}."
        )
    return Table(f"{cell}: effects", columns, rows, notes=notes)


def chosen_table(found: Responses) -> Table | None:
    """The setting that each combination chose; None if nothing was tuned."""
    chosen = found.chosen
    if chosen.empty:
        return None
    rows = [
        [
            str(row["cell"]),
            _marks(row, found.design),
            row["setting"] or "as in the preset",
            "failed" if math.isnan(row["score"]) else f"{row['score']:.4f}",
        ]
        for row in chosen.to_dict("records")
    ]
    signs = ", ".join(found.design.factors)
    notes = [f"combination: {signs}; + is high. score: the mean over the trials' seeds."]
    if chosen["score"].isna().any():
        notes.append("failed: each setting lacks a trial; of these the fewest changes are chosen.")
    for cell, own in chosen.groupby("cell", sort=False):
        counts = Counter(own["setting"].replace("", "as in the preset"))
        shown = ", ".join(f"{name} {n}" for name, n in counts.most_common())
        notes.append(f"{cell}: {shown}.")
    return Table("Chosen settings", ["cell", "combination", "setting", "score"], rows, notes=notes)


def pilot_line(cell: str, fit: Fit) -> str:
    """What the trials say of the noise, and how many seeds it needs."""
    needed = fit.seeds_needed or "too many"
    return (
        f"{cell}: the trials with the chosen settings have a residual deviation of "
        f"{fit.deviation:.4f} ({fit.freedom} degrees of freedom); to show a main effect of "
        f"{fit.smallest:g} with a probability of 80 % needs {needed} seeds"
    )


def _noise(fit: Fit) -> list[str]:
    if math.isnan(fit.deviation):
        return ["One seed: no interval and no test."]
    seeds = f"deviation of the seeds {fit.seed_deviation:.4f}, {fit.seeds} seeds"
    seeds = seeds if fit.seeds > 1 else "one seed"
    return [
        f"Residual deviation {fit.deviation:.4f}, {seeds}: a main effect of "
        f"{fit.smallest_shown:.4f} is shown with a probability of 80 %."
    ]


def _level(design: Design, factor: str, sign: int) -> str:
    """The first override of a level; dots stand for others."""
    (key, value), *others = design.level(factor, sign).items()
    return f"{key}={value}{' ...' if others else ''}"


def _marks(row: Mapping[Any, Any], design: Design) -> str:
    return " ".join("+" if row[name] == "high" else "-" for name in design.factors)


def _estimate(value: float, half_width: float, seeds: int) -> str:
    n = 1 if math.isnan(half_width) else max(seeds, 2)
    return with_interval(Interval(value, half_width, n), _METRIC)


def _p(value: float) -> str:
    if math.isnan(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"
