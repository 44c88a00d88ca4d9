"""Settings of one machine: of a node by ``--node-config``, of the server by ``--run-config``."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.errors import InputError

_STATES = "~/.fedexp/clients"

PLACES = ("root", "path", "test_path")
"""Keys of ``data`` that name files or folders; a machine sets them as ``data-root`` and so on."""


@dataclass(frozen=True)
class NodeConfig:
    """The node's own settings, from ``flower-supernode --node-config``.

    Attributes:
        client: the number of the node's client.
        data: key of the config's ``data`` -> the value that replaces the config's value.
        states: the folder for the states of the node's client.
    """

    client: int
    data: dict[str, str]
    states: Path


def node_config(values: Mapping[str, Any], own_data: bool) -> NodeConfig:
    """Read the node's settings.

    Args:
        values: the values of ``--node-config``.
        own_data: whether the node reads a dataset of its own. Then ``client`` is the number of its
            client; otherwise ``partition-id`` is.

    Raises:
        InputError: the number is missing, or is no integer.
    """
    key = "client" if own_data else "partition-id"
    client = values.get(key)
    if type(client) is not int:
        what = "the number of its client" if own_data else "the client whose samples it takes"
        raise InputError(f"--node-config: needs {key}=K, {what}")
    states = Path(str(values.get("state", _STATES))).expanduser()
    return NodeConfig(client, own_places(values), states)


def own_places(values: Mapping[str, Any]) -> dict[str, str]:
    """The paths that ``values`` sets on this machine: key of the config's ``data`` -> path."""
    found = {key: str(values.get(f"data-{key}", "")) for key in PLACES}
    return {key: place for key, place in found.items() if place}


def with_data(config: Config, places: Mapping[str, str]) -> Config:
    """Copy the config with ``places`` in ``data``; unknown keys are found when data are built."""
    node = config.data.node | dict(places)
    shared = {name: getattr(config.data, name) for name in type(config.data).model_fields}
    return config.model_copy(update={"data": type(config.data)(**shared, **node)})


def dataset_digest(about: Description) -> str:
    """A digest of the dataset's classes, inputs and shapes, which all machines must share.

    The dataset's own name, which is that of its file or folder, may differ.
    """
    return hashlib.sha256(repr(replace(about, name="")).encode()).hexdigest()[:16]
