"""The results' pages: their sections, their tables, and numbers as the pages write them."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from generate.results import RESULTS
from scipy import stats


def stored(name: str) -> Any:
    """What a JSON file of the results holds."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def section(page: str, title: str) -> str:
    """The text below a heading of a page such as ``fednh.md``, to the next heading."""
    _, found, rest = (RESULTS / page).read_text().partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title}"
    return rest.partition("\n## ")[0]


def rows(text: str, corner: str) -> dict[str, list[str]]:
    """The first table of ``text`` with this first header line: first cell -> the other cells."""
    lines = text.partition(f"{corner}\n")[2].partition("\n\n")[0].splitlines()
    assert lines, f"no table begins with {corner}"
    cells = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines[1:]]
    return {name: own for name, *own in cells}


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
