"""Records without the folders and names of the machine that made them."""

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ELSEWHERE = "/elsewhere"
"""The folder that stands for every folder of another machine."""

_ABSOLUTE = re.compile(r"(?:(?<=^)|(?<=[=\s'\"\[({,]))(?:/[^\s/'\"\])},=]+)*/([^\s/'\"\])},=]+)/?")
_COMMON = ("localhost", "localhost.localdomain")


def neutral(value: Any) -> Any:
    """The value of a record with ``/elsewhere/NAME`` in place of each absolute path."""
    if isinstance(value, Mapping):
        return {key: neutral(each) for key, each in value.items()}
    if isinstance(value, list):
        return [neutral(each) for each in value]
    if isinstance(value, str):
        return _ABSOLUTE.sub(rf"{ELSEWHERE}/\1", value)
    return value


def neutral_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``run.json`` without paths, accounts and trackers of its author."""
    config = neutral(identity["config"])
    tracking = config["tracking"]
    trackers = {name: each for name, each in tracking["trackers"].items() if name == "jsonl"}
    wandb = {**tracking["wandb"], "entity": None, "dir": None, "mode": "disabled"}
    config["tracking"] = {**tracking, "trackers": trackers, "wandb": wandb}
    return {**identity, "config": config}


def told_names(content: bytes) -> Iterator[str]:
    """What a file tells of this machine: the home folder, or the machine's name."""
    host, home = socket.gethostname(), str(Path.home())
    text = content.decode(errors="replace")
    if len(home) > 1 and f"{home}/" in text:
        yield f"the home folder {home}"
    if len(host) > 3 and host not in _COMMON and re.search(rf"\b{re.escape(host)}\b", text):
        yield f"the name of this machine, {host}"
