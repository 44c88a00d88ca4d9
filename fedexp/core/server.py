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
    """Holds the global weights. Of a client it gets updates and nothing else.

    Args:
        weights: the shared weights that the first round starts from.
        aggregator: how the cohort's weights become the next ones.
        parts: socket -> part, the aggregator among them.
        ranks: the processes; each has a server like this one.
        reducibles: objects that are reduced over the ranks together with the updates.
    """

    def __init__(
        self,
        weights: Tensors,
        aggregator: Aggregator,
        parts: Mapping[str, Part],
        ranks: Ranks | None = None,
        reducibles: Sequence[Reducible] = (),
    ) -> None:
        self.weights = weights
        self.aggregator = aggregator
        self.parts = dict(parts)
        self.ranks = ranks or Ranks()
        self.reducibles = tuple(reducibles)
        self._merged = 0

    def broadcast(self, round: int) -> Message:
        """What every client of this round downloads."""
        extras = {name: part.broadcast(round) for name, part in self.parts.items()}
        return Message(round, self.weights, {name: sent for name, sent in extras.items() if sent})

    def aggregate(self, updates: Iterable[Update]) -> int:
        """Aggregate the cohort's updates as they arrive, then call the parts' ``aggregate``.

        Without any update nothing changes: the round is skipped.

        Args:
            updates: those of this rank's clients.

        Returns:
            The number of updates at all ranks.
        """
        digests = _Digests()
        for update in updates:
            self.aggregator.add(update, self.weights)
            digests.updates.append(self._digest(update, digests.sums))
        self.ranks.all_reduce([self.aggregator, digests, *self.reducibles])
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
        """The parts' metrics of the round just aggregated; empty if it was skipped."""
        if not self._merged:
            return {}
        return {name: v for part in self.parts.values() for name, v in part.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """The global weights and the parts' server state, for a checkpoint."""
        states = {name: part.server_state() for name, part in self.parts.items()}
        return {"weights": self.weights, "parts": states}

    @property
    def state_nbytes(self) -> int:
        """Bytes of all tensors that the server keeps between rounds, in RAM or on disk."""
        return _nbytes(self.state_dict()) + _nbytes(self.fixed_state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``; the tensors may be on another device."""
        saved = state["weights"]
        self.weights = {name: saved[name].to(old.device) for name, old in self.weights.items()}
        for name, part in self.parts.items():
            part.load_server_state(state["parts"][name])

    def fixed_state(self) -> dict[str, Mapping[str, Tensors]]:
        """Socket -> the tensors of its part that never change, for a checkpoint; see ``Part``."""
        states = {name: part.fixed_state() for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state}

    def load_fixed_state(self, state: Mapping[str, Mapping[str, Tensors]]) -> None:
        """Inverse of ``fixed_state``."""
        for name, of_part in state.items():
            self.parts[name].load_fixed_state(of_part)

    def _digest(self, update: Update, sums: Extras) -> Update:
        """What is kept of an update; reports of ``summed`` parts are added to ``sums``."""
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
        updates: the updates without their weights and without the reports in ``sums``.
        sums: socket -> name -> float64 sum of the reports of a part that is ``summed``.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.sums: Extras = defaultdict(dict)

    def contribution(self) -> Contribution:
        """Those of this rank."""
        flat = {f"{part}/{name}": v for part, sums in self.sums.items() for name, v in sums.items()}
        return Contribution(flat, self.updates)

    def set_reduced(self, sums: Tensors, items: Sequence[list[Update]]) -> None:
        """Those of all ranks."""
        self.updates = sorted(chain(*items), key=lambda update: update.client)
        for flat, value in sums.items():
            part, _, name = flat.partition("/")
            self.sums[part][name] = value


def _add(sums: Tensors, report: Tensors) -> None:
    """Add in float64, so that a float32 result does not depend on the order of updates."""
    for name, value in report.items():
        if name in sums:
            sums[name].add_(value)
        else:
            sums[name] = value.to(torch.float64, copy=True)


def _nbytes(state: Any) -> int:
    """Bytes of the tensors in nested mappings and sequences.

    A mapping with an attribute ``nbytes``, as a ``TensorStore`` on disk, is not read.
    """
    if (size := getattr(state, "nbytes", None)) is not None:
        return int(size)
    if isinstance(state, Mapping):
        return sum(map(_nbytes, state.values()))
    return sum(map(_nbytes, state)) if isinstance(state, list | tuple) else 0
