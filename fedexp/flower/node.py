"""The client half: what the node of one client does with a request.

Flower makes the ClientApp anew for each message, so each request begins by reading the client's
state from the node's disk and ends by writing it back.
"""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import contextmanager
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.data.federated import ClientData
from fedexp.distributed.fabric import make_fabric
from fedexp.distributed.ranks import Ranks
from fedexp.engines.threads import restored_threads, set_threads
from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.flower.app import App
from fedexp.flower.known_data import data_of, load_place
from fedexp.flower.node_states import NodeStates
from fedexp.flower.places import OnOneNode
from fedexp.flower.reply import Introduction, pack_introduction, pack_tensors, pack_update
from fedexp.flower.request import Facts, Request, read_request
from fedexp.flower.scoring import pack_scores, scores_at_node
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import Plan, plan
from fedexp.tracking.tracker import Tracker

LOGGER = logging.getLogger(__name__)
_STATES = "~/.fedexp/clients"


@dataclass(frozen=True)
class NodeConfig:
    """The node's own settings, from ``flower-supernode --node-config``.

    Attributes:
        client: the number of its client.
        data_root: replaces ``data.root`` of the config; None keeps it.
        states: the folder for its client's states.
    """

    client: int
    data_root: str | None
    states: Path


def node_config(values: Mapping[str, Any], own_data: bool) -> NodeConfig:
    """Check the node's settings. Raises InputError."""
    key = "client" if own_data else "partition-id"
    client, root = values.get(key), values.get("data-root")
    if type(client) is not int:
        what = "the number of its client" if own_data else "the client whose samples it takes"
        raise InputError(f"--node-config: needs {key}=K, {what}")
    states = Path(str(values.get("state", _STATES))).expanduser()
    return NodeConfig(client, None if root is None else str(root), states)


def with_root(config: Config, root: str | None) -> Config:
    """The config with another ``data.root``; None keeps it."""
    if root is None:
        return config
    node = config.data.node | {"root": root}
    shared = {name: getattr(config.data, name) for name in type(config.data).model_fields}
    return config.model_copy(update={"data": type(config.data)(**shared, **node)})


def dataset_digest(about: Description) -> str:
    """A digest of the names and shapes that all places must share."""
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


class Node:
    """Answers requests for one client.

    Args:
        app: the app.
        own: the node's own settings.
    """

    def __init__(self, app: App, own: NodeConfig) -> None:
        self._app, self._own = app, own
        self._config = with_root(app.config, own.data_root)

    def introduce(self) -> RecordDict:
        """The client's number and its number of training samples."""
        about = dataset_digest(self._plan.description)
        size = self._client_data.num_samples
        return pack_introduction(self._app.version, Introduction(self._own.client, size, about))

    def class_counts(self) -> RecordDict:
        """[C] the client's training samples of each class."""
        return pack_tensors(self._app.version, {"counts": self._client_data.class_counts})

    def train(self, content: RecordDict) -> RecordDict:
        """Take the client's turn in a round, and store its state."""
        with self._opened(content) as (federation, request, found):
            engine, store, client = federation.engine, federation.store, self._own.client
            (update,) = engine.train([client], request.message)
            state = store.take(client)
            states = self._states(request)
            states.save(request.message.round, state, request.base, request.saved)
            return pack_update(self._app.version, update, lost_state=not found)

    def probe(self, content: RecordDict) -> RecordDict:
        """The client's answer to the sampler."""
        with self._opened(content) as (federation, request, _):
            ((_, answer),) = federation.engine.probe([self._own.client], request.message)
            return pack_tensors(self._app.version, answer)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """The scores of the client's personal model on the node's test split."""
        with self._opened(content) as (federation, request, _):
            scoring, client = Scoring(federation.engine), self._own.client
            found = scores_at_node(scoring, client, request.message, content)
            return pack_scores(self._app.version, found)

    @contextmanager
    def _opened(self, content: RecordDict) -> Iterator[tuple[Federation, Request, bool]]:
        """The federation with the client's state, the request, and whether the state was found."""
        with restored_threads():
            fabric = make_fabric(self._config.engine)
            request = read_request(content, fabric.device)
            place = OnOneNode(self._app.own_data, self._own.client, request.facts)
            data = place.load(self._config, self._plan.source, fabric.device)
            shape = self._plan.description.input_shape
            set_threads(self._config, self._plan.backbone, shape, fabric.device, Ranks())
            federation = assemble(self._plan, fabric, data, Tracker(), population=place)
            state = self._states(request).load(request.base, fabric.device)
            if state is not None:
                federation.store.put(self._own.client, state)
            yield federation, request, state is not None

    def _states(self, request: Request) -> NodeStates:
        return NodeStates(self._own.states / request.run / f"client_{self._own.client}")

    @cached_property
    def _plan(self) -> Plan:
        return plan(self._config)

    @cached_property
    def _client_data(self) -> ClientData:
        cpu = torch.device("cpu")
        whole = load_place(self._config, self._app.own_data, self._plan.source, cpu)
        if not self._app.own_data and self._own.client >= len(whole.clients):
            raise InputError(
                f"partition-id={self._own.client}: should be below "
                f"clients.count={len(whole.clients)}"
            )
        return data_of(self._own.client, whole, self._app.own_data)
