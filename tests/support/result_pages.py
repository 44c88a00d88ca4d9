"""The results' pages: their sections, their tables, and numbers as the pages write them."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import yaml
from generate.results import RESULTS, ROOT
from scipy import stats

from fedexp.reporting.interval import Interval, smallest_gain
from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.results import chosen
from fedexp.reporting.leaderboard.standings import standings

NOT_RUN = "not run"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def stored(name: str) -> Any:
    """What a JSON file of the results holds."""
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def leaderboard(contest: str) -> pd.DataFrame:
    """All runs of a leaderboard such as ``digits_more``."""
    return read_csv(RESULTS / f"leaderboard_{contest}" / "leaderboard.csv")


def seven_cells(contest: str = "digits") -> pd.DataFrame:
    """Its runs but for those of the cell with BatchNorm, in which few methods ran."""
    runs = leaderboard(contest)
    return runs[runs["cell"] != "digits_batch_norm"]


@cache
def tuned(metric: str, trials: int = 16) -> pd.DataFrame:
    """The standings in the seven cells if each method has so many trials."""
    return standings(chosen(seven_cells(), trials), metric)


def published(experiment: str, metric: str = "global/accuracy") -> dict[str, float]:
    """The paper's values of a preset such as ``fednh/cifar10_dir03``: method -> value.

    Where its tables name a method twice, the first counts.
    """
    preset = yaml.safe_load((ROOT / "conf" / "experiment" / f"{experiment}.yaml").read_text())
    found = [each["values"] for each in preset["paper"] if each["metric"] == metric]
    return {
        name.removeprefix("algorithm="): value
        for values in reversed(found)
        for name, value in values.items()
    }


def section(page: str, title: str) -> str:
    """The text below a heading of a page such as ``fednh.md``, to the next heading."""
    _, found, rest = (RESULTS / page).read_text().partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title}"
    return rest.partition("\n## ")[0]


def one_line(page: str, title: str) -> str:
    """A section with its lines joined, so that a sentence is found wherever it is broken."""
    return prose(section(page, title))


def prose(text: str) -> str:
    """A text in one line, for sentences that its lines break."""
    return " ".join(text.split())


def body(text: str, corner: str) -> list[str]:
    """The lines below the first header line that ends so, without the rule."""
    lines = text.partition(f"{corner}\n")[2].partition("\n\n")[0].splitlines()
    assert lines, f"no table begins with {corner}"
    return lines[1:]


def rows(text: str, corner: str) -> dict[str, list[str]]:
    """The first table of ``text`` with this first header line: first cell -> the other cells."""
    cells = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in body(text, corner)]
    return {name: own for name, *own in cells}


def filled(text: str, corner: str, columns: int = 1) -> list[list[str]]:
    """The rows of such a table; of its first ``columns`` cells an empty one repeats that above."""
    found: list[list[str]] = []
    for line in body(text, corner):
        cells = [cell.strip(" *") for cell in line.split("|")[1:-1]]
        above = found[-1] if found else cells
        found.append([own or last for own, last in zip(cells, above[:columns], strict=False)])
        found[-1] += cells[columns:]
    return found


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


def gain(differences: Sequence[float], digits: int = 3) -> str:
    """Differences of paired seeds as ``+0.025 ± 0.066``: their mean and half of a 95 % interval."""
    found = interval(differences)
    return f"{found.mean:+.{digits}f} ± {found.half_width:.{digits}f}"


def interval(differences: Sequence[float]) -> Interval:
    """The mean of paired differences and its 95 % interval."""
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return Interval(float(np.mean(differences)), float(half), len(differences))


def both(differences: Sequence[float]) -> tuple[float, float]:
    """The two numbers of ``gain``."""
    found = interval(differences)
    return found.mean, found.half_width


def could_show(found: Interval) -> str:
    """The smallest gain that so many seeds could show, as ``could show 0.033``."""
    least = smallest_gain(found)
    return f"could show {least:.0f}" if least > 1 else f"could show {least:.3f}"


def signed(differences: Sequence[float]) -> str:
    """One difference a seed, as ``+0.065, -0.022``."""
    return ", ".join(f"{value:+.3f}" for value in differences)


def by_seed(values: Sequence[float]) -> str:
    """One value a seed, as ``0.578, 0.637, 0.664``."""
    return ", ".join(f"{value:.3f}" for value in values)


def near(typed: str, values: Sequence[float]) -> bool:
    """Whether the numbers of a text are these values, rounded.

    For values of a file with four decimals, where the page rounds what was measured: beside half a
    unit of the last digit an error of 0.0001 is accepted.
    """
    numbers = _NUMBER.findall(typed)
    units = [10.0 ** -len(each.partition(".")[2]) for each in numbers]
    return len(numbers) == len(values) and all(
        abs(float(number) - value) <= unit / 2 + 1e-4
        for number, unit, value in zip(numbers, units, values, strict=True)
    )
