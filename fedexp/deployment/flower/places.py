"""The clients of a federation on Flower, as the server and as one node reach them."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedexp.config.schema import Config
from fedexp.core.part import Setting
from fedexp.data.dataset import Describer
from fedexp.data.federated import FederatedData
from fedexp.deployment.flower.app import App
from fedexp.deployment.flower.engine import NodesEngine
from fedexp.deployment.flower.known_data import KnownData, data_of, load_place
from fedexp.deployment.flower.letters import Request
from fedexp.deployment.flower.nodes import Nodes
from fedexp.deployment.flower.record import Record, write_record
from fedexp.deployment.flower.scoring import NodesScoring
from fedexp.engines.base import Engine
from fedexp.engines.resources import Resources
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.population import Population
from fedexp.state.run_folder import checkpoint_folders


class OnNodes(Population):
    """The clients of a federation, as the server reaches them: each client has its own node.

    Args:
        app: the config and the origin of the clients' data.
        nodes: reaches the nodes.
        run: the name of the run.
        folder: the run's folder.
        keep: ``checkpoint.keep``, the number of checkpoints that the folder keeps.
    """

    def __init__(self, app: App, nodes: Nodes, run: str, folder: Path, keep: int) -> None:
        self._app, self._nodes, self._run = app, nodes, run
        self._folder, self._keep = folder, keep

    def load(self, config: Config, source: Describer, device: torch.device) -> FederatedData:
        """Load the server's test split, and ask the nodes for the sizes of all clients."""
        whole = load_place(config, self._app.own_data, source, device)
        self._nodes.meet(config.clients.count)
        self._write_record()
        self._nodes.save_lost = self._write_record
        nothing = torch.arange(0, device=device)
        unknown = torch.full((whole.description.num_classes,), torch.nan, device=device)
        template = replace(
            whole.clients[0],
            class_counts=unknown,
            train_index=nothing,
            test_index=nothing,
            validation_index=nothing,
        )
        nobody = {k: replace(template, client=k) for k in range(config.clients.count)}
        return KnownData(whole, self._nodes.sizes, nobody)

    def known(self, setting: Setting) -> Setting:
        """Add a secret seed, and a function that asks the nodes for class counts."""
        return _known(setting, self._nodes.ask_class_counts)

    def engine(self, resources: Resources, make: Callable[[Resources], Engine]) -> Engine:
        """Make the engine that trains clients on their nodes."""
        return NodesEngine(
            resources,
            self._nodes,
            self._run,
            self._oldest_checkpoint,
            forgets=resources.store.remember == "cohort",
        )

    def scoring(self, engine: Engine) -> Scoring:
        """Make the object that scores the global model here, and personal models on the nodes."""
        return NodesScoring(engine)

    def _write_record(self) -> None:
        sizes, lost = dict(enumerate(self._nodes.sizes.tolist())), sorted(self._nodes.lost)
        write_record(self._folder, Record(self._run, sizes, self._app.own_data, lost))

    def _oldest_checkpoint(self, round: int) -> int:
        """The round of the oldest checkpoint before this round; 0 if there is none yet.

        A server that keeps no checkpoints never goes back, so its result is the round before.
        """
        if not self._keep:
            return round - 1
        found = checkpoint_folders(self._folder)
        return int(found[-1].name.removeprefix("round_")) if found else 0


class OnOneNode(Population):
    """The clients of a federation, as the node of one client knows them.

    Args:
        own_data: whether the node reads its own dataset.
        client: the number of the node's client.
        request: the server's request, with the numbers of all clients' samples.
    """

    def __init__(self, own_data: bool, client: int, request: Request) -> None:
        self._own_data, self._client, self._request = own_data, client, request

    def load(self, config: Config, source: Describer, device: torch.device) -> FederatedData:
        """The data of this node's client."""
        whole = load_place(config, self._own_data, source, device)
        own = {self._client: data_of(self._client, whole, self._own_data)}
        return KnownData(whole, self._request.sizes, own)

    def known(self, setting: Setting) -> Setting:
        """Add a secret seed, and the class counts if the server sent them."""
        counts = self._request.class_counts
        return _known(setting, None if counts is None else lambda: counts)


def _known(setting: Setting, ask_all: Callable[[], torch.Tensor] | None) -> Setting:
    clients = replace(setting.clients, ask_all=ask_all)
    server = replace(setting.server, secret_seed=secrets.randbits(63))
    return replace(setting, clients=clients, server=server)
