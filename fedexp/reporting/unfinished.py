"""How to finish a run that has done fewer rounds than its config asks for."""

from fedexp.config.keys import selected
from fedexp.drawing.texts import printable
from fedexp.reporting.runs import Run


def how_to_finish(run: Run) -> str:
    """The line that names an unfinished run, such as ``a: 63 of 400 rounds, ...``.

    It ends with the command that finishes the run. For a job of a sweep, this is the command that
    resumes the sweep. A run without saved overrides has no such command.
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
    return f"{line}; to finish it: {command}{' limits.minutes=null' if is_limited else ''}"
