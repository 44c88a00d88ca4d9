"""The report of a factorial experiment: tables, pictures and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fedexp.reporting.csv import csv
from fedexp.reporting.drawing import file_name, png
from fedexp.reporting.factorial.effects import Fit
from fedexp.reporting.factorial.figures import draw_effects, draw_interactions
from fedexp.reporting.factorial.responses import Responses, read_responses
from fedexp.reporting.factorial.tables import chosen_table, effects_table, first_table, pilot_line
from fedexp.reporting.families import Floats
from fedexp.reporting.files import write_contents
from fedexp.reporting.markdown import markdown
from fedexp.reporting.table import Table


@dataclass(frozen=True)
class FactorialReport:
    """The effects in each cell of a factorial experiment.

    Attributes:
        found: the runs.
        metric: the metric of the values.
        statistic: their statistic over rounds.
        smallest: the smallest effect of interest.
        problems: a line for each run or seed that is left out.
    """

    found: Responses
    metric: str
    statistic: str
    smallest: float
    problems: list[str]

    @classmethod
    def read(
        cls,
        paths: Sequence[Path],
        metric: str = "global/accuracy",
        statistic: str = "final",
        smallest: float = 0.015,
    ) -> FactorialReport:
        """Read the runs in these folders of sweeps. Raises InputError."""
        found, problems = read_responses(paths, metric, statistic)
        for cell in found.cells:
            problems += found.values(cell)[2]
        return cls(found, metric, statistic, smallest, problems)

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """Cell -> model, for each cell with at least one complete seed."""
        values = {cell: self.found.values(cell)[0] for cell in self.found.cells}
        return self._fits(values)

    @cached_property
    def pilots(self) -> dict[str, Fit]:
        """Cell -> model of the trials with the chosen settings, where they are complete."""
        return self._fits({cell: self.found.pilot(cell) for cell in self.found.cells})

    @property
    def heading(self) -> list[str]:
        """The design, the values, and what the trials say of the noise."""
        lines = [self.found.design.size(), f"values: {self.metric}, {self.statistic}"]
        for cell in self.found.cells:
            seeds = ", ".join(map(str, self.found.values(cell)[1])) or "none is complete"
            lines.append(f"{cell}: seeds {seeds}")
        tested = [(cell, fit) for cell, fit in self.pilots.items() if fit.seeds > 1]
        return [*lines, *(pilot_line(cell, fit) for cell, fit in tested)]

    def tables(self) -> list[Table]:
        """For each cell which part to add first, then all effects; then the chosen settings."""
        made = [first_table(cell, fit, self.found.better) for cell, fit in self.fits.items()]
        made += [effects_table(cell, fit) for cell, fit in self.fits.items()]
        chosen = chosen_table(self.found)
        return made if chosen is None else [*made, chosen]

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """File name without suffix -> title and figure: each cell's effects and interactions."""
        found = {}
        for cell, fit in self.fits.items():
            title = f"{cell}: effects on {self.metric}"
            found[f"effects_{file_name(cell)}"] = title, draw_effects(fit, title)
            if len(self.found.design.factors) == 1:  # nothing can interact
                continue
            title = f"{cell}: {self.metric} at the levels of two factors"
            found[f"interactions_{file_name(cell)}"] = title, draw_interactions(fit, title)
        return found

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """File name without suffix -> frame of numbers."""
        effects = [fit.table.assign(cell=cell) for cell, fit in self.fits.items()]
        alone = [fit.alone.assign(cell=cell) for cell, fit in self.fits.items()]
        found = {"runs": self.found.finals, "trials": self.found.trials}
        found["chosen"] = self.found.chosen
        if self.fits:
            found |= {"effects": pd.concat(effects), "alone": pd.concat(alone)}
        return {name: frame for name, frame in found.items() if not frame.empty}

    def write(self, folder: Path) -> list[Path]:
        """Write ``factorial.md``, a CSV for each frame and the pictures. Raises InputError."""
        figures = self.figures()
        text = ["# Factorial experiment\n", *(f"{line}\n" for line in self.heading)]
        text += map(markdown, self.tables())
        text += [f"![{title}]({name}.png)\n" for name, (title, _) in figures.items()]
        text += [f"* {each}\n" for each in self.problems]
        contents = {"factorial.md": "\n".join(text).encode()}
        contents |= {f"{name}.png": png(figure) for name, (_, figure) in figures.items()}
        contents |= {f"{name}.csv": csv(frame) for name, frame in self.frames.items()}
        write_contents(contents, folder)
        return [folder / name for name in contents]

    def _fits(self, values: Mapping[str, Floats]) -> dict[str, Fit]:
        design, smallest = self.found.design, self.smallest
        return {cell: Fit(design, own, smallest) for cell, own in values.items() if len(own)}
