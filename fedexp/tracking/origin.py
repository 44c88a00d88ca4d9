"""``origin.json``: the code, the data and the environment that a run's numbers come from.

The file has an entry for each start of the run from which on something was different.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedexp.config.keys import COSTS, is_below
from fedexp.config.sources import Code
from fedexp.errors import DAMAGED, InputError, readable
from fedexp.state.atomic import write_durably
from fedexp.state.run_folder import read_small_file
from fedexp.tracking.environment import fedexp_version

FILE_NAME = "origin.json"
_KEYS = {"from_round", "fedexp", "code", "data", "environment"}

Origin = Mapping[str, Any]
"""An entry: ``from_round``, ``fedexp`` (version and commit), ``rounds`` (the key of the config),
``code``, ``data``, ``environment``.

``code`` has the attributes of ``fedexp.config.sources.Code``. Older entries lack ``rounds``.
"""


def origin(
    rounds: int, code: Code, data: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """An entry for a start from round 1."""
    about = {"from_round": 1, "fedexp": fedexp_version(), "rounds": rounds, "code": asdict(code)}
    return json.loads(json.dumps({**about, "data": data, "environment": environment}))  # type: ignore[no-any-return]


def read_origins(folder: Path) -> list[Origin]:
    """The entries of a run's folder, the first start first; empty for a run of an older version.

    Raises InputError if the file is damaged.
    """
    path = folder / FILE_NAME
    with readable(path, *DAMAGED):
        starts = json.loads(read_small_file(path) or b'{"starts": []}')["starts"]
        for each in starts:
            if not each.keys() >= _KEYS or type(each["from_round"]) is not int:
                raise ValueError(f"an entry should have {', '.join(sorted(_KEYS))}")
            TypeAdapter(Code).validate_python(each["code"])
            _ = each["fedexp"]["version"], each["data"].items(), each["environment"].items()
        return list(starts)


def of_rounds(starts: Sequence[Origin], done: int) -> list[Origin]:
    """The starts that trained some of the first ``done`` rounds."""
    return [each for each in starts if each["from_round"] <= done]


def write_origins(folder: Path, past: Sequence[Origin], now: Origin, done: int) -> list[Origin]:
    """Add a start after ``done`` rounds to the entries ``past``, unless nothing has changed.

    Entries of starts that began after these rounds are dropped. Returns the written entries.
    """
    kept = of_rounds(past, done)
    started = {**now, "from_round": done + 1}
    if not kept or {**kept[-1], "from_round": done + 1} != started:
        kept.append(started)
    write_durably(folder / FILE_NAME, json.dumps({"starts": kept}, indent=1).encode() + b"\n")
    return kept


def changed_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The parts whose files have changed between two ``code``, as ``loss (my_method.py)``.

    A resumed run may have another engine, so only the files that both engines have are compared.
    """
    found = []
    for key in sorted(old["parts"].keys() & new["parts"].keys()):
        before, now = ({*code["parts"][key]} for code in (old, new))
        names = before & now if is_below(key, COSTS) else before | now
        changed = [n for n in sorted(names) if old["files"].get(n) != new["files"].get(n)]
        if changed:
            found.append(f"{key} ({', '.join(changed)})")
    return found


def later_code(starts: Sequence[Origin]) -> list[str]:
    """A line for each start that went on with changed code."""
    pairs = itertools.pairwise(starts)
    return [
        f"since round {new['from_round']} with changed code: {', '.join(changed)}"
        for old, new in pairs
        if (changed := changed_parts(old["code"], new["code"]))
    ]


def check_code(folder: Path, old: Origin, code: Mapping[str, Any], accepts: bool) -> list[str]:
    """Compare the code of a run that is resumed with the code of its last rounds.

    If only fedexp's version has changed, fedexp's own files may differ.

    Returns:
        Lines to warn with.

    Raises:
        InputError: the code of a part has changed, and ``accepts`` is false.
    """
    before, now = old["fedexp"]["version"], fedexp_version()["version"]
    own = changed_parts(_own(old["code"]), _own(code))
    changed = changed_parts(old["code"], code)
    lines = []
    if before != now:
        also = f"; its code has changed in {', '.join(changed)}" if changed else ""
        lines.append(f"resume: {folder} began with fedexp {before} and goes on with {now}{also}")
        changed = own
    if changed and not accepts:
        raise InputError(
            f"resume={folder}: the code of {', '.join(changed)} has changed since round "
            f"{old['from_round']}; checkpoint.changed_code=accept goes on with the new code"
        )
    return lines


def _own(code: Mapping[str, Any]) -> dict[str, Any]:
    """The code with the user's files alone."""
    files = {name: digest for name, digest in code["files"].items() if name in code["own"]}
    return {"parts": code["parts"], "files": files}
