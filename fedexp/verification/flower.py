"""Checks an app for Flower: its files must follow from its config; its runs are trained again."""

import re
import tomllib
from pathlib import Path

from fedexp.deployment.flower.app import FILE, read_app
from fedexp.deployment.flower.bundle import MODULE, bundle_files
from fedexp.deployment.flower.own_code import FOLDER, OwnCode
from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.runs import is_within, run_folders
from fedexp.reporting.sources import file_digest
from fedexp.verification.run import Ways
from fedexp.verification.sample import verify_runs
from fedexp.verification.verdict import Outcome, Verdict

APP = f"{MODULE}/{FILE}"
_LEFT_OUT = re.compile(r"left out: ([\w, ]+)\.")


def verify_app(folder: Path, ways: Ways) -> list[Verdict]:
    """Check the app in ``folder``, and the runs in it, which the simulation must repeat.

    Raises InputError if the app cannot be read. Nothing of the app is run.
    """
    app, readme = read_app(folder / MODULE), folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    found = _LEFT_OUT.search(text)
    project, packages = _project(folder)
    code = OwnCode(dict.fromkeys(app.code, b""), packages)
    left_out = found[1].split(", ") if found else []
    expected = bundle_files(project, app, code, left_out)
    wrong = [
        f"{name}: {what}"
        for name, each in expected.items()
        if (what := _wrong(folder / name, each))
    ]
    own = {f"{MODULE}/{FOLDER}/{name}": digest for name, digest in app.code.items()}
    wrong += [
        f"{name}: has another content than the app names"
        for name, digest in own.items()
        if _digest(folder / name) != digest
    ]
    modules = (path.relative_to(folder).as_posix() for path in (folder / MODULE).rglob("*.py"))
    wrong += [
        f"{printable(name)}: was added" for name in sorted(modules) if name not in {*expected, *own}
    ]
    outcome = Outcome.DIFFERS if wrong else Outcome.SAME
    line = "does not follow from its config" if wrong else "every file follows from its config"
    verdicts = [Verdict(printable(str(folder)), outcome, line, wrong)]
    return [*verdicts, *(verify_runs(folder, ways) if run_folders(folder)[0] else [])]


def _project(folder: Path) -> tuple[str, list[str]]:
    """The name of an app, and the packages that it needs besides fedexp and flwr.

    The folder's name, and no packages, if ``pyproject.toml`` is damaged.
    """
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        return str(project["name"]), list(project["dependencies"][2:])
    except (OSError, ValueError, LookupError, TypeError):
        return folder.resolve().name, []


def _digest(path: Path) -> str | None:
    """SHA-256 of a file in the app; None if it is missing."""
    if not path.is_file():
        return None
    if not is_within(path, path.parent):
        raise InputError(f"{printable(str(path))}: is a link out of its folder")
    return file_digest(path)


def _wrong(path: Path, expected: str) -> str | None:
    """What is wrong with a file; None if it has the expected text."""
    if not path.is_file():
        return "is missing"
    if not is_within(path, path.parent):
        raise InputError(f"{printable(str(path))}: is a link out of its folder")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = enumerate(zip([*lines, ""], [*expected.splitlines(), ""], strict=False), start=1)
    differing = next((number for number, (one, other) in pairs if one != other), len(lines) + 1)
    is_same = lines == expected.splitlines()
    return None if is_same else f"differs in line {differing} from the file that fedexp writes"
