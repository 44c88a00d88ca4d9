"""The ``fedexp-replay`` command: the simulated time of finished runs on other devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedexp.cli.compose import composed
from fedexp.cli.parsers import add_config_dir, home_path
from fedexp.cli.pipes import one_line_command
from fedexp.cli.report import add_comparison, show
from fedexp.errors import InputError
from fedexp.reporting.report import Report, unreached
from fedexp.reporting.runs import Run, read_runs
from fedexp.reporting.statistics import Measures

_SHOWN = ("global/accuracy", "clock/seconds")


@one_line_command("fedexp-replay")
def main(arguments: Sequence[str] | None = None) -> None:
    """The ``fedexp-replay`` command; exit code 1 if no run could be replayed."""
    options = _parse(arguments)
    targets = options.targets
    paths, systems = _systems(options.words, options.config_dir)
    runs, problems = _replayed(paths, systems, targets)
    times = tuple(f"clock/time_to/{target:g}" for target in targets)
    reached = tuple(n for n in times if any(n in run.history[-1] for run in runs))
    problems += [
        unreached(target)
        for target, name in zip(targets, times, strict=True)
        if name not in reached
    ]
    measures = Measures(metrics=(*_SHOWN, *reached), against="seconds")
    made = Report.of(runs, problems, options.baseline, measures)
    show(made, options.to)


def _systems(
    words: Sequence[str], config_dir: Path | None
) -> tuple[list[Path], dict[str, dict[str, Any]]]:
    """Divide the words of the command line into folders and simulated devices.

    Args:
        words: the words that are no flags.
        config_dir: a folder with options of the user; None if there is no such folder.

    Returns:
        The folders, and each option of ``system`` -> the config node ``system`` with this option.

    Raises:
        InputError: there is no folder, not exactly one ``system=``, or an override of another key.
    """
    overrides = [word for word in words if "=" in word and not home_path(word).exists()]
    paths = [home_path(word) for word in words if word not in overrides]
    if wrong := [each for each in overrides if each.partition("=")[0].split(".")[0] != "system"]:
        raise InputError(f"{wrong[0]}: only system=OPTION,... and keys of system can be given")
    chosen = [each for each in overrides if each.startswith("system=")]
    if len(chosen) != 1 or not paths:
        raise InputError("needs folders of runs and one system=OPTION,..., such as system=phones")
    keys = [each for each in overrides if each not in chosen]
    found = {}
    for option in chosen[0].removeprefix("system=").split(","):
        found[option] = composed([f"system={option}", *keys], config_dir).config["system"]
    return paths, found


def _replayed(
    paths: Sequence[Path], systems: dict[str, dict[str, Any]], targets: Sequence[float]
) -> tuple[list[Run], list[str]]:
    """A copy of each run for each system, and a line for each run that cannot be replayed.

    Raises InputError if no run can be replayed.
    """
    from fedexp.runtime.replay import Replay  # Lightning is slow to import

    runs, problems = read_runs(paths)
    found = []
    for run in runs:
        try:
            replay = Replay(run.folder, run.config, run.history)
            for option, system in systems.items():
                found.append(_on(run, option, system, replay.on(system, targets), targets))
        except InputError as error:
            problems.append(str(error))
    if not found:
        raise InputError("\n".join(problems) or "no folder given")
    return found, problems


def _on(
    run: Run,
    option: str,
    system: dict[str, Any],
    history: list[dict[str, float]],
    targets: Sequence[float],
) -> Run:
    """Copy the run, with ``system`` as its devices and ``history`` as its metrics."""
    others = tuple(each for each in run.overrides if not each.startswith("system"))
    return replace(
        run,
        config={**run.config, "system": system},
        choices={**run.choices, "system": option},
        overrides=(*others, f"system={option}"),
        history=history,
        headlines={**run.headlines, **{f"clock/time_to/{each:g}": "lower" for each in targets}},
        directions={**run.directions, "clock/*": "lower"},
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedexp-replay",
        description="Finds the simulated time of finished runs on other devices, without training "
        "again: fedexp-replay multirun/DATE/TIME system=phones,hospitals --targets 0.8,0.9",
    )
    add = parser.add_argument
    add(
        "words",
        nargs="+",
        metavar="PATH... system=OPTION,...",
        help="runs, sweeps or folders of them; the devices; keys such as system.file=my.csv",
    )
    add_config_dir(parser)
    add_comparison(parser)
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    main()
