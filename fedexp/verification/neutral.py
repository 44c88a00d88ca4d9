"""Records without the folders, accounts and names of the machine that made them."""

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedexp.config.keys import is_below, override_key

ELSEWHERE = "/elsewhere"
"""The folder that stands for every folder of another machine."""

_ABSOLUTE = re.compile(r"(?:(?<=^)|(?<=[=\s'\"\[({,]))(?:/[^\s/'\"\])},=]+)*/([^\s/'\"\])},=]+)/?")
_COMMON = ("localhost", "localhost.localdomain")
_TRACKING = "tracking"
_PATTERN = "user_pattern"
_TOLD: dict[str, Any] = {
    **dict.fromkeys(("entity", "group", "job_type", "name", "notes", "id", "dir")),
    "project": "fedexp",
    "tags": [],
    "mode": "disabled",
}
"""Keys of ``tracking.wandb`` that may tell of the author -> the value that each gets."""


def neutral(value: Any) -> Any:
    """The value of a record with ``/elsewhere/NAME`` in place of each absolute path.

    Lists of overrides lose those of ``tracking``, which change no result. A regular expression is
    no path.
    """
    if isinstance(value, Mapping):
        return {key: each if key == _PATTERN else neutral(each) for key, each in value.items()}
    if isinstance(value, list):
        kept = [each for each in value if not _is_of_tracking(each)]
        return [each if _is_pattern(each) else neutral(each) for each in kept]
    if isinstance(value, str):
        return _ABSOLUTE.sub(rf"{ELSEWHERE}/\1", value)
    return value


def _is_of_tracking(value: Any) -> bool:
    return isinstance(value, str) and is_below(override_key(value), [_TRACKING])


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and override_key(value) == f"data.{_PATTERN}"


def neutral_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``run.json`` without paths, accounts and trackers of its author."""
    config = neutral(identity["config"])
    tracking = config[_TRACKING]
    trackers = {name: each for name, each in tracking["trackers"].items() if name == "jsonl"}
    wandb = {**tracking["wandb"], **_TOLD}
    config[_TRACKING] = {**tracking, "trackers": trackers, "wandb": wandb}
    return {**identity, "config": config, "wandb_id": ""}


def told_names(content: bytes) -> Iterator[str]:
    """What a file tells of this machine: the home folder, or the machine's name."""
    host, home = socket.gethostname(), str(Path.home())
    text = content.decode(errors="replace")
    if len(home) > 1 and f"{home}/" in text:
        yield f"the home folder {home}"
    if len(host) > 3 and host not in _COMMON and re.search(rf"\b{re.escape(host)}\b", text):
        yield f"the name of this machine, {host}"
