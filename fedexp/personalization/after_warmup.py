"""FedAvg in the first rounds; then each client gets a mixture of the clients' own models."""

from collections.abc import Sequence
from typing import Any

from fedexp.config.compatibility.traits import (
    ADDS_DRIFT,
    NOT_THE_MEAN,
    READS_ROUNDS,
    REPLACES_MODEL,
)
from fedexp.config.schema import Share
from fedexp.contract import PartMessage, PartUpdate, Setting, Tensors
from fedexp.personalization.client_models import StoresModels
from fedexp.rounding import rounded_down


class AfterWarmup(StoresModels):
    """In the warm-up the shared weights are averaged; afterwards clients have models of their own.

    A subclass defines ``mixture``. The server stores the model that each client sent last after the
    warm-up. A client without a stored model gets the global model of the warm-up, which stays as it
    is. Rounds that leave the global weights as they were do not count as warm-up.

    Args:
        warmup: the share of the run's rounds that are warm-up; their number is rounded down. A run
            that goes on with more rounds keeps the number.
    """

    traits = frozenset({NOT_THE_MEAN, READS_ROUNDS, REPLACES_MODEL})
    forbids = {
        ADDS_DRIFT: "{other}: would move the global weights of the warm-up, which stay as they are "
        "afterwards; with this personalization use another regularizer"
    }
    has_global = False
    saved: tuple[str, ...] = ("steps", "warmup_steps")

    def __init__(self, warmup: Share) -> None:
        super().__init__()
        self.warmup = warmup
        self.steps = 0

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' models."""
        super().setup(setting)
        self.warmup_steps = rounded_down(self.warmup, setting.rounds)
        self._shared = sorted(setting.model.shared)

    @property
    def _is_warmup(self) -> bool:
        return self.steps < self.warmup_steps

    def mixture(self, client: int, own: Tensors) -> Tensors:
        """The weights that the client gets in place of those of the model ``own`` that it sent."""
        raise NotImplementedError

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's own model and its mixture of the clients' models."""
        if client not in self._stored:
            return message
        own = self._stored[client]
        model = own | self.mixture(client, own)
        weights = {name: model[name].to(w) for name, w in message.weights.items()}
        return PartMessage(message.round, weights, message.extras)

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """All weights that the client sent, for ``aggregate``; nothing in the warm-up."""
        return {} if self._is_warmup else dict(weights)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models, after the warm-up."""
        if self._is_warmup:
            return
        for update in updates:
            self._stored[update.client] = {name: update.extras[name] for name in self._shared}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The average in the warm-up; afterwards the global weights stay."""
        following = merged if self._is_warmup else current
        self.steps += 1
        return following

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``; older states lack the length of the warm-up."""
        super().load_server_state({"warmup_steps": self.warmup_steps} | state)
