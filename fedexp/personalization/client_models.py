"""The server's store of the latest tensors of each client, and mixtures of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fedexp.config.compatibility.traits import NOT_THE_MEAN, OTHER_WEIGHTS, REPLACES_MODEL
from fedexp.contract import PartMessage, PartUpdate, Personalization, Setting, Tensors, TensorStore

PAST_THE_AGGREGATOR: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (NOT_THE_MEAN, OTHER_WEIGHTS),
        "{other}: would not act on the models that clients get; with this personalization take "
        "aggregator=sample_weighted or uniform",
    )
)
"""``forbids`` of personalizations that make the clients' models from what clients sent."""


class ClientModels:
    """A mapping from a client to its latest tensors. Tensors that do not fit into RAM are on disk.

    New tensors of a client get a new name in the store, because stored tensors never change
    (``Part.store``).

    Args:
        store: an empty store, from ``ServerTools.make_store``.

    Attributes:
        versions: client -> the version number of its tensors in the store.
    """

    def __init__(self, store: TensorStore) -> None:
        self.store = store
        self.versions: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        return client in self.versions

    def __iter__(self) -> Iterator[int]:
        """The clients in the order of their numbers."""
        return iter(sorted(self.versions))

    def __getitem__(self, client: int) -> Tensors:
        return self.store[_name(client, self.versions[client])]

    def __setitem__(self, client: int, tensors: Tensors) -> None:
        version = self.versions.get(client, 0)
        self.store[_name(client, version + 1)] = tensors
        self.versions[client] = version + 1
        if version:
            del self.store[_name(client, version)]


class StoresModels(Personalization):
    """A personalization whose server stores the latest tensors of each client in ``_stored``."""

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' tensors."""
        self.store = setting.server.make_store("personalization")
        self._stored = ClientModels(self.store)

    def server_state(self) -> dict[str, Any]:
        """The ``saved`` attributes, and the versions of the tensors, which are in ``store``."""
        return super().server_state() | {"versions": dict(self._stored.versions)}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self._stored.versions = dict(state["versions"])


class MixesModels(StoresModels):
    """The server stores each client's latest model, and sends the client a mixture of the models.

    A subclass defines ``mixture``, or its own ``message_to``. A client without a stored model gets
    the global model.
    """

    has_global = False
    traits = frozenset({REPLACES_MODEL})
    forbids = PAST_THE_AGGREGATOR

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' models."""
        super().setup(setting)
        self._shared = sorted(setting.model.shared)

    def mixture(self, client: int, own: Tensors) -> Tensors:
        """The weights that the client gets in place of those of its stored model ``own``."""
        raise NotImplementedError

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's own model and its mixture of the clients' models."""
        if client not in self._stored:
            return message
        own = self._stored[client]
        model = own | self.mixture(client, own)
        weights = {name: model[name].to(w) for name, w in message.weights.items()}
        return replace(message, weights=weights)

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """All weights that the client sent, for ``aggregate``."""
        return dict(weights)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models."""
        for update in updates:
            self._stored[update.client] = {name: update.extras[name] for name in self._shared}


def weighted_mean(
    models: Mapping[int, Tensors] | ClientModels, shares: Mapping[int, float], names: Iterable[str]
) -> Tensors:
    """Compute the mean sum_i a_i w_i / sum_i a_i of clients' tensors, in float64.

    Only one client's tensors at a time are in memory.

    Args:
        models: client -> its tensors w_i.
        shares: client -> a_i. A client with a_i = 0 is left out.
        names: the names of the tensors to average; other tensors are left out.
    """
    names, total = tuple(names), sum(shares.values())
    mean: Tensors = {}
    for client, share in shares.items():
        own = models[client] if share else {}
        for name in names if share else ():
            part = own[name].double() * (share / total)
            mean[name] = mean[name] + part if name in mean else part
    return mean


def _name(client: int, version: int) -> str:
    return f"client_{client}_version_{version}"
