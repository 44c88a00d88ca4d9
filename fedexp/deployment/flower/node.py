"""The client half: the node of one client answers requests of the server.

Flower makes the ClientApp anew for each message. So each request that needs the client's state
reads it from the node's disk, and a request to train also writes the new state to disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import torch
from flwr.app import RecordDict

from fedexp.core.error_notes import noted
from fedexp.data.federated import ClientData
from fedexp.deployment.flower.app import App
from fedexp.deployment.flower.known_data import data_of, load_place
from fedexp.deployment.flower.letters import (
    Answer,
    Introduction,
    Request,
    ScoreRequest,
    Scores,
    Turn,
    read_request,
)
from fedexp.deployment.flower.node_states import NodeStates
from fedexp.deployment.flower.own_config import NodeConfig, dataset_digest, with_data
from fedexp.deployment.flower.places import OnOneNode
from fedexp.deployment.flower.scoring import scores_at_node
from fedexp.distributed.fabric import make_fabric
from fedexp.distributed.ranks import Ranks
from fedexp.engines.threads import restored_threads, set_threads
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import Plan, plan

R = TypeVar("R", bound=Request)


class Node:
    """Answers the server's requests to one client.

    Args:
        app: the config and the origin of the data; the server and all nodes have the same.
        own: the node's own settings.
    """

    def __init__(self, app: App, own: NodeConfig) -> None:
        self._app, self._own = app, own
        self._config = with_data(app.config, own.data)

    def introduce(self) -> Introduction:
        """Tell the server the client's number, its number of training samples and its dataset."""
        about = dataset_digest(self._plan.description)
        size = self._client_data.num_samples
        return Introduction(self._own.client, size, about)

    def class_counts(self) -> Answer:
        """Tell the server the number of the client's training samples of each class, [C]."""
        return Answer({"counts": self._client_data.class_counts})

    def train(self, content: RecordDict) -> Turn:
        """Take the client's turn in a round, and store its state."""
        with self._opened(content, Request) as (federation, request, found):
            engine, store, client = federation.engine, federation.store, self._own.client
            (update,) = engine.train([client], request.message)
            state = store.take(client)
            self._states(request).save(request.round, state, request.base, request.saved)
            return Turn(
                update.weights,
                update.extras,
                {name: float(value) for name, value in update.metrics.items()},
                update.num_samples,
                update.steps,
                update.samples,
                update.is_finite,
                lost_state=not found,
            )

    def probe(self, content: RecordDict) -> Answer:
        """Answer the sampler's question to the client (``Engine.probe``)."""
        with self._opened(content, Request) as (federation, request, _):
            ((_, answer),) = federation.engine.probe([self._own.client], request.message)
            return Answer(answer)

    def evaluate(self, content: RecordDict) -> Scores:
        """The scores of the client's personal model on the node's test split."""
        with self._opened(content, ScoreRequest) as (federation, request, _):
            return scores_at_node(Scoring(federation.engine), self._own.client, request)

    @contextmanager
    def _opened(self, content: RecordDict, kind: type[R]) -> Iterator[tuple[Federation, R, bool]]:
        """The federation with the client's state, the request, and whether the state was found."""
        with restored_threads():
            fabric = make_fabric(self._config.engine)
            request = read_request(content, self._app.version, kind, fabric.device)
            place = OnOneNode(self._app.own_data, self._own.client, request)
            data = place.load(self._config, self._plan.source, fabric.device)
            shape = self._plan.description.input_shape
            set_threads(self._config, self._plan.backbone, shape, fabric.device, Ranks())
            federation = Federation(self._plan, fabric, data, population=place)
            state = self._states(request).load(request.base, fabric.device)
            if state is not None:
                federation.store.put(self._own.client, state)
            doing = f"answering for client {self._own.client} in round {request.round}"
            with noted(doing, federation.engine.resources.components):
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
