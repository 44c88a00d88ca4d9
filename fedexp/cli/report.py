"""The ``fedexp-report`` command: compares runs with each other and with a paper's numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.cli.parsers import home_path, refuse
from fedexp.cli.pipes import one_line_command
from fedexp.errors import InputError
from fedexp.reporting import wandb_report, wandb_workspace
from fedexp.reporting.files import DEFAULTS, FORMATS, write, write_contents
from fedexp.reporting.report import Report
from fedexp.reporting.sources import FILE_NAME, arguments_of, made_again, sources
from fedexp.reporting.statistics import AXES, STATISTICS
from fedexp.reporting.terminal import print_table
from fedexp.reporting.wandb_pages import saved
from fedexp.tracking.wandb import save_report

SMALLEST = 0.015
"""The smallest effect of interest in a factorial experiment: 1.5 points of accuracy."""
_NOT_FACTORIAL = (
    *("baseline", "targets", "format", "figures", "against", "smooth"),
    *("wandb", "workspace"),
)
"""Options that ``--factorial`` does not read."""
_OF_FILES = ("format", "figures", "against")
"""Options of the files and their figures."""


@one_line_command("fedexp-report")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-report`` command; exit code 1 if nothing could be read."""
    options = _parse(arguments)
    if options.factorial:
        _factorial(options)
        return
    read = arguments_of(
        options.paths,
        options.format,
        options.figures == "all",
        baseline=options.baseline,
        statistic=options.statistic,
        targets=options.targets,
        metrics=options.metrics,
        smooth=options.smooth,
        against=options.against,
    )
    made = made_again(read)
    show(made, options.to, read, *read["write"])
    if options.wandb is not None:
        print(saved("--wandb", wandb_report.build, made, *options.wandb, should_exist=False))
        if options.to is not None:
            ids = [run.wandb_id for run in made.runs]
            entity, project = options.wandb
            save_report(options.to, entity, project, ids)
    if options.workspace is not None:
        build = wandb_workspace.build
        print(saved("--workspace", build, made, *options.workspace, should_exist=True))


def show(
    made: Report,
    folder: Path | None,
    arguments: Mapping[str, Any] | None = None,
    formats: Sequence[str] = DEFAULTS,
    every_figure: bool = False,
) -> None:
    """Print the report; write its files, if there is a ``folder``, and name them; name problems.

    ``arguments`` are for ``sources.json``.
    """
    _print_tables(made)
    if folder is not None:
        written = write(made, folder, formats, every_figure)
        write_contents({FILE_NAME: sources(made, folder, written, arguments)}, folder)
        for path in (*written, folder / FILE_NAME):
            print(path)
    for problem in made.problems:
        print(problem, file=sys.stderr)


def _factorial(options: argparse.Namespace) -> None:
    """Print the effects of a factorial experiment; write its files, if there is a folder."""
    from fedexp.reporting.factorial.report import FactorialReport  # slow to import

    metric, *others = options.metrics or ["global/accuracy"]
    if others:
        raise InputError("--metrics: --factorial analyses one metric")
    made = FactorialReport.read(options.paths, metric, options.statistic, options.interest)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in made.heading:
        console.print(line)
    for table in made.tables():
        console.print()
        print_table(table, console)
    for path in made.write(options.to) if options.to is not None else ():
        print(path)
    for problem in made.problems:
        print(problem, file=sys.stderr)


def _print_tables(made: Report) -> None:
    """Print all tables, and of the last, the table of the runs, the notes and the counts."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in made.heading:
        console.print(line)
    console.print()
    *tables, runs = made.tables()
    for table in tables:
        print_table(table, console)
        console.print()
    for note in runs.notes:
        console.print(note)
    left_out = f"; {made.left_out} folders left out" if made.left_out else ""
    finished = sum(run.finished for run in made.runs)
    console.print(f"{len(made.runs)} runs, {finished} finished{left_out}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-report",
        description="Compares runs: mean and deviation over seeds, paired differences to a "
        "baseline, and the published numbers of their paper.",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=home_path,
        metavar="PATH",
        help="a run, a sweep, or a folder of them",
    )
    add_comparison(parser)
    _add_contents(parser)
    _add_factorial(parser)
    add(
        "--wandb",
        type=_project,
        metavar="ENTITY/PROJECT",
        help="also write a report in W&B; with --to its files become an artifact",
    )
    add(
        "--workspace",
        type=_project,
        metavar="ENTITY/PROJECT",
        help="also save a view in the workspace of W&B's project, with the headlines on top",
    )
    options = parser.parse_intermixed_args(arguments)
    if options.factorial:
        refuse(parser, options, _NOT_FACTORIAL, "not with --factorial")
    else:
        refuse(parser, options, ["interest"], "only with --factorial")
    if options.to is None:
        refuse(parser, options, _OF_FILES, "only with --to")
    return options


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is compared, and where the report is written."""
    add = parser.add_argument
    add(
        "--to",
        type=home_path,
        metavar="DIR",
        help="write the report and its figures to this folder",
    )
    add(
        "--baseline",
        metavar="KEY=VALUE",
        help="compare with these runs and count the rounds to their best: algorithm=fedavg",
    )
    add(
        "--targets",
        type=_accuracies,
        default=(),
        metavar="0.5,0.6",
        help="count the rounds, or in a replay the simulated seconds, to these accuracies",
    )


def _add_contents(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the report shows."""
    add = parser.add_argument
    add(
        "--format",
        type=_formats,
        default=DEFAULTS,
        metavar=",".join(FORMATS),
        help="the formats that --to writes; all but pdf (figures as PDF) by default",
    )
    add(
        "--figures",
        choices=("few", "all"),
        default="few",
        help="few: the first page of each figure, in about 0.3 seconds; all: every page",
    )
    add("--statistic", choices=STATISTICS, default="final", help="the statistic in the tables")
    add(
        "--metrics",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="metrics to compare instead of the headlines",
    )
    add(
        "--against",
        choices=AXES,
        default="round",
        help="draw curves over rounds, simulated seconds or bytes sent",
    )
    add(
        "--smooth",
        action="store_true",
        help="smooth the curves (Savitzky-Golay 13, 3), also for counting rounds",
    )


def _add_factorial(parser: argparse.ArgumentParser) -> None:
    """Add the options of factorial experiments."""
    add = parser.add_argument
    add(
        "--factorial",
        action="store_true",
        help="main effects and interactions of a factorial experiment, such as "
        "fedexp -m experiment=factorial/digits",
    )
    add(
        "--interest",
        type=float,
        default=SMALLEST,
        metavar="0.015",
        help="the smallest effect of interest in a factorial experiment",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)


def _accuracies(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(each) for each in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: should be numbers joined by commas") from None
    if wrong := [each for each in found if not 0 < each <= 1]:
        raise argparse.ArgumentTypeError(f"{wrong[0]:g}: should be an accuracy between 0 and 1")
    return found


def _project(text: str) -> tuple[str, str]:
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise argparse.ArgumentTypeError(f"{text}: should be ENTITY/PROJECT")
    return entity, project


def _formats(text: str) -> tuple[str, ...]:
    wanted = _names(text)
    if unknown := [each for each in wanted if each not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{','.join(unknown)}: choose from {', '.join(FORMATS)}")
    return wanted


if __name__ == "__main__":
    main()
