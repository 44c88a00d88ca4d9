"""The results' pages: their sections, their tables, and numbers as the pages write them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import yaml
from generate.results import RESULTS, ROOT
from scipy import stats

NOT_RUN = "not run"


def stored(name: str) -> Any:
    """What a JSON file of the results holds."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def section(page: str, title: str) -> str:
    """The text below a heading of a page such as ``fednh.md``, to the next heading."""
    _, found, rest = (RESULTS / page).read_text().partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title}"
    return rest.partition("\n## ")[0]


def body(text: str, corner: str) -> list[str]:
    """The lines below the first header line that ends so, without the rule."""
    lines = text.partition(f"{corner}\n")[2].partition("\n\n")[0].splitlines()
    assert lines, f"no table begins with {corner}"
    return lines[1:]


def rows(text: str, corner: str) -> dict[str, list[str]]:
    """The first table of ``text`` with this first header line: first cell -> the other cells."""
    cells = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in body(text, corner)]
    return {name: own for name, *own in cells}


def line_with(text: str, part: str) -> str:
    """The only line that has this part."""
    (found,) = (line for line in text.splitlines() if part in line)
    return found


@cache
def runs(file: str) -> dict[str, dict[str, Any]]:
    """The runs in a JSON file, each under the overrides that not all of the file's runs have."""
    found = stored(file)
    shared = set.intersection(*(set(run["overrides"]) for run in found))
    own = [[each for each in run["overrides"] if each not in shared] for run in found]
    return {" ".join(names): run for names, run in zip(own, found, strict=True)}


def curve(run: Mapping[str, Any]) -> dict[int, float]:
    """The global accuracy of a stored run: round -> value."""
    return {int(round): value for round, value in run["global/accuracy"].items()}


def published(experiment: str, metric: str = "global/accuracy") -> dict[str, float]:
    """Algorithm -> the paper's value in the first row of the preset with this metric."""
    preset = yaml.safe_load((ROOT / "conf" / "experiment" / f"{experiment}.yaml").read_text())
    row = next(each for each in preset["paper"] if each["metric"] == metric)
    return {name.removeprefix("algorithm="): value for name, value in row["values"].items()}


def table_line(first: str, columns: Sequence[object]) -> str:
    """A line of a table: its first cell and the others."""
    return f"| {first} | {' | '.join(map(str, columns))} |"


def lines_by_round(
    curves: Mapping[str, Mapping[int, float]], rounds: Sequence[int], *, bold: bool
) -> dict[str, str]:
    """Name -> its line in a table of accuracies by round; the best of a round may be bold."""
    columns = [[shown(each.get(round)) for each in curves.values()] for round in rounds]
    cells = zip(*(map(bold_best, columns) if bold else columns), strict=True)
    return {name: table_line(name, own) for name, own in zip(curves, cells, strict=True)}


def shown(value: float | None) -> str:
    """An accuracy as a table shows it."""
    return NOT_RUN if value is None else f"{value:.3f}"


def bold_best(cells: Sequence[str]) -> list[str]:
    """The cells, of which the best are bold: equal cells all are."""
    best = max(cell for cell in cells if cell != NOT_RUN)
    return [f"**{cell}**" if cell == best else cell for cell in cells]


def gain(differences: Sequence[float]) -> str:
    """Differences of paired seeds as ``+0.025 ± 0.066``: their mean and half of a 95 % interval."""
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return f"{np.mean(differences):+.3f} ± {half:.3f}"


def by_seed(values: Sequence[float]) -> str:
    """One value a seed, as ``0.578, 0.637, 0.664``."""
    return ", ".join(f"{value:.3f}" for value in values)


def one_line(page: str, title: str) -> str:
    """A section with its lines joined, so that a sentence is found wherever it is broken."""
    return " ".join(section(page, title).split())
