"""The user's code that a run needs: listed, shown, and importable only while it is asked for."""

import hashlib
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedexp.config.own_modules import is_foreign, is_library
from fedexp.config.sources import own_targets
from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.verification.claims import Claim

ASKS = "--run-own-code"
_NAME = re.compile(r"[^\W\d]\w*(/[^\W\d]\w*)*\.py")


def own_code(claim: Claim) -> dict[str, str] | None:
    """Name of a file -> its text, for the own code of a run; None if the run has none.

    A run of an earlier version has no texts; its result is empty.

    Raises:
        InputError: a file would take the place of another package's, or lie elsewhere.
    """
    texts: dict[str, str] = dict(claim.origins[0]["code"]["own"]) if claim.origins else {}
    for name in texts:
        top = name.removesuffix(".py").partition("/")[0]
        if not _NAME.fullmatch(name) or not is_foreign(top) or is_library(top):
            place = claim.run.place
            raise InputError(f"{place}: {printable(name)}: is no name for a file of own code")
    return texts if own_targets(claim.run.config) else None


def listing(claim: Claim, texts: Mapping[str, str], shows: bool) -> list[str]:
    """Lines that list own code, and its text if it is shown."""
    targets = own_targets(claim.run.config)
    named = ", ".join(f"{key}={printable(each)}" for key, each in targets.items())
    lines = [f"own code: {named}"]
    if not texts:
        lines.append("the folder has no copy of it; code that is installed here would run")
    for name, text in texts.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        content = text.splitlines()
        lines.append(f"{name}: {len(content)} lines, SHA-256 {digest}")
        lines += [f"    {printable(each)}" for each in content] if shows else []
    return lines


@contextmanager
def importable(texts: Mapping[str, str]) -> Iterator[None]:
    """Let the block import these files, from a temporary folder; forget them afterwards.

    Raises:
        InputError: a file was changed in the block, or another was added.
    """
    tops = {name.removesuffix(".py").partition("/")[0] for name in texts}
    writes_bytecode = sys.dont_write_bytecode
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())
        _forget(tops)
        sys.path.insert(0, temporary)
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            sys.dont_write_bytecode = writes_bytecode
            sys.path.remove(temporary)
            _forget(tops)
        _check_unchanged(folder, texts)


def _forget(tops: set[str]) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] in tops]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _check_unchanged(folder: Path, texts: Mapping[str, str]) -> None:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if not p.is_dir()}
    for name in sorted(found.keys() | texts.keys()):
        path = found.get(name)
        is_same = path and path.is_file() and path.read_bytes() == texts.get(name, "").encode()
        if not is_same or name not in texts:
            raise InputError(f"{printable(name)}: own code changed this file while it ran")
