"""The server: the global weights and the parts' server halves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from fedexp.core.messages import Extras, Message, Tensors, Update
from fedexp.core.part import Part
from fedexp.core.sockets import Aggregator
from fedexp.distributed.ranks import Contribution, Ranks, Reducible


class Server:
    """Holds what is global. It sees updates and nothing else of a client.

    Args:
        weights: the shared weights that the first round starts from.
        aggregator: how the cohort's weights become the next ones.
        parts: socket -> part, the aggregator among them.
        ranks: the processes, each of which has a server like this one.
        companions: what else is summed over the ranks when the updates are.
    """

    def __init__(
        self,
        weights: Tensors,
        aggregator: Aggregator,
        parts: Mapping[str, Part],
        ranks: Ranks | None = None,
        companions: Sequence[Reducible] = (),
    ) -> None:
        self.weights = weights
        self.aggregator = aggregator
        self.parts = dict(parts)
        self.ranks = ranks or Ranks()
        self.companions = tuple(companions)
        self._merged = 0

    def broadcast(self, round: int) -> Message:
        """What is_sent down this round."""
        extras = {name: part.broadcast(round) for name, part in self.parts.items()}
        return Message(round, self.weights, {name: sent for name, sent in extras.items() if sent})

    def aggregate(self, updates: Iterable[Update]) -> int:
        """Take in the cohort's updates as they arrive, then let the parts merge what remains.

        Without a single update nothing changes: the round is skipped.

        Args:
            updates: those of this rank's clients.

        Returns:
            How many updates came in, at all ranks.
        """
        digests = _Digests()
        for update in updates:
            self.aggregator.add(update, self.weights)
            digests.updates.append(self._digest(update, digests.sums))
        self.ranks.all_reduce([self.aggregator, digests, *self.companions])
        self._merged = len(digests.updates)
        if not self._merged:
            return 0
        merged = self.aggregator.merge(self.weights)
        for name, part in self.parts.items():
            part.aggregate(digests.updates)
            merged = part.correct(self.weights, merged, digests.sums[name], self._merged)
        self.weights = merged
        return self._merged

    def metrics(self) -> dict[str, float]:
        """What the parts have to say about the round just merged; nothing if it was skipped."""
        if not self._merged:
            return {}
        return {name: v for part in self.parts.values() for name, v in part.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that must be found again after a restart."""
        states = {name: part.server_state() for name, part in self.parts.items()}
        return {"weights": self.weights, "parts": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``; the tensors may come on another device."""
        saved = state["weights"]
        self.weights = {name: saved[name].to(old.device) for name, old in self.weights.items()}
        for name, part in self.parts.items():
            part.load_server_state(state["parts"][name])

    def _digest(self, update: Update, sums: Extras) -> Update:
        """What is kept of an update; what its parts want summed goes into ``sums``."""
        extras: Extras = {}
        for name, part in self.parts.items():
            report = update.extras.get(name, {})
            if part.summed:
                _add(sums[name], report)
                report = {}
            extras[name] = report | part.extract(update, self.weights)
        return update.digest(extras)


class _Digests:
    """What is kept of the cohort's updates.

    Attributes:
        updates: without their weights, and without what is in ``sums``.
        sums: socket -> name -> the float64 sum of what its part wants summed.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.sums: Extras = defaultdict(dict)

    def contribution(self) -> Contribution:
        """Those of this rank's clients."""
        flat = {f"{part}/{name}": v for part, sums in self.sums.items() for name, v in sums.items()}
        return Contribution(flat, self.updates)

    def set_reduced(self, sums: Tensors, items: Sequence[list[Update]]) -> None:
        """Those of all."""
        self.updates = sorted(chain(*items), key=lambda update: update.client)
        for flat, value in sums.items():
            part, _, name = flat.partition("/")
            self.sums[part][name] = value


def _add(sums: Tensors, report: Tensors) -> None:
    """Add in float64, so that the order of updates leaves no trace in a float32 result."""
    for name, value in report.items():
        if name in sums:
            sums[name].add_(value)
        else:
            sums[name] = value.to(torch.float64, copy=True)
