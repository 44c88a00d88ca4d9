"""How to finish a run that has done fewer rounds than its config asks for."""

import shlex

from fedexp.config.keys import selected
from fedexp.drawing.texts import printable
from fedexp.reporting.runs import UNREADABLE, Run, is_within, read_yaml

_TAIL = 4096
"""Bytes at the end of a log in which the error is looked for that ended its run."""


def how_to_finish(run: Run) -> str:
    """The line that names an unfinished run, such as ``a: 63 of 400 rounds, ...``.

    It ends with the command that finishes the run. For a job of a sweep, this is the command that
    resumes the sweep. A run without saved overrides has no such command. A run that an error ended,
    such as one that diverged, may end with it again, so the line names its log.
    """
    line = f"{run.place}: {run.progress} rounds, left out of means"
    sweep = run.folder.parent
    if (sweep / "multirun.yaml").is_file():
        command = f"fedexp -m resume={printable(str(sweep))}"
    elif (run.folder / ".hydra" / "overrides.yaml").is_file():
        command = f"fedexp resume={run.place}"
    else:
        return line
    is_limited = selected(run.config, "limits.minutes") is not None
    purpose = "it failed, see its fedexp.log; to try again" if _failed(run) else "to finish it"
    limits = " limits.minutes=null" if is_limited else ""
    return f"{line}; {purpose}: {command}{limits}{_config_dir(run)}"


def _config_dir(run: Run) -> str:
    """The flag for the run's folder of own options; empty without one. ``resume`` repeats none."""
    try:
        found = read_yaml(run.folder / ".hydra" / "hydra.yaml")
        sources = found["hydra"]["runtime"]["config_sources"]
        typed = [str(each["path"]) for each in sources if each["provider"] == "command-line"]
    except UNREADABLE:
        return ""
    return "".join(f" --config-dir {shlex.quote(printable(each))}" for each in typed)


def _failed(run: Run) -> bool:
    """Whether the end of the run's log has an error."""
    log = run.folder / "fedexp.log"
    if not log.is_file() or not is_within(log, run.folder):
        return False
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _TAIL, 0))
        return b"[ERROR]" in file.read(_TAIL)
