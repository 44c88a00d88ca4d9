"""The differences between the origin of a run and the origin of its repetition, in words."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedexp.tracking.environment import BITS_DEPEND_ON, OF_ENGINE
from fedexp.tracking.origin import Origin, changed_parts


def is_same_kind(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two environments compute the same bits; older runs lack some of the keys."""
    return all(was[key] == now.get(key) for key in BITS_DEPEND_ON if key in was)


def has_one_engine(starts: Sequence[Origin]) -> bool:
    """Whether all starts had the same engine with the same keys; older runs name no keys."""
    files = [_engine_files(start) for start in starts]
    named = ([start["environment"].get(key) for start in starts] for key in OF_ENGINE)
    same = all(len({*values} - {None}) <= 1 for values in named)
    return same and all(each == files[0] for each in files)


def _engine_files(start: Origin) -> object:
    return start["code"]["parts"].get("engine")


def has_other_precision(was: Origin, now: Origin) -> bool:
    """Whether both starts name a precision, and not the same; older runs name none."""
    one, other = (start["environment"].get("precision") for start in (was, now))
    return None not in (one, other) and one != other


def other_data(was: Origin, now: Origin) -> Iterator[str]:
    """A line for each part of the data that was read differently."""
    for name in sorted(was["data"].keys() | now["data"].keys()):
        if was["data"].get(name) != now["data"].get(name):
            yield f"data: {name} differs ({_short(was, name)}; here {_short(now, name)})"


def _short(one: Origin, name: str) -> str:
    found = one["data"].get(name)
    if isinstance(found, Mapping):
        return f"{found.get('samples')} samples, digest {str(found.get('digest'))[:12]}"
    return f"digest {str(found)[:12]}"


def other_code(was: Origin, now: Origin) -> Iterator[str]:
    """A line if fedexp has another version, and one for each part whose files differ."""
    before, here = ({k: v for k, v in each["fedexp"].items() if v} for each in (was, now))
    if before != here:
        yield f"code: fedexp {_version(before)}; here {_version(here)}"
    for part in changed_parts(was["code"], now["code"]):
        yield f"code: {part} differs"


def _version(found: Mapping[str, Any]) -> str:
    commit = f", commit {str(found['commit'])[:10]}" if "commit" in found else ""
    return f"{found.get('version')}{commit}{' with changes' if found.get('changed') else ''}"


def other_environment(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A line for each key of the environment with another value."""
    for key in was:
        if was[key] != now.get(key):
            yield f"environment: {key} {was[key]}; here {now.get(key)}"


def later_environment(starts: Sequence[Origin]) -> Iterator[str]:
    """A line for each value of the environment, and each engine, that a later start changed."""
    for before, start in itertools.pairwise(starts):
        since, was = f"since round {start['from_round']}", before["environment"]
        for key, value in start["environment"].items():
            if was.get(key, value) != value:
                yield f"{since}: environment: {key} {value}"
        if _engine_files(before) != _engine_files(start):
            yield f"{since}: another engine"
