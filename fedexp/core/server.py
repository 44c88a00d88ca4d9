"""The server: the global weights and the parts' server halves."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch

from fedexp.core import results
from fedexp.core.messages import Extras, Message, PartMessage, Tensors, Update
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.part import Part
from fedexp.core.reducible import Contribution, Reducible, joined, split
from fedexp.core.sockets import Aggregator


class Server:
    """Holds the global weights; sees nothing of a client except the client's updates.

    In a round the server broadcasts a message, adds each update when it arrives, and takes a step.
    If there are several processes, each process has a server, and every server gets the updates of
    all processes before the step.

    Args:
        weights: the initial shared weights.
        parts: socket -> part, including the aggregator.

    Attributes:
        refused: whether the last step refused the merged weights.
        idle_rounds: the number of steps since the global weights were last replaced.
    """

    def __init__(self, weights: Tensors, parts: Mapping[str, Part]) -> None:
        self.weights = weights
        self.parts = dict(parts)
        self.aggregator = cast(Aggregator, parts["aggregator"])
        self._addressing = {
            name: part
            for name, part in parts.items()
            if type(part).message_to is not Part.message_to
            or type(part).extras_to is not Part.extras_to
        }
        self._digests = _Digests()
        self._reporting: list[Part] = []
        self.refused = False
        self.idle_rounds = 0

    def broadcast(self, round: int) -> Message:
        """The message to all clients: the global weights and the tensors of the parts (extras)."""
        extras = {
            name: results.tensors(part.broadcast(round), name, part, "broadcast(...)")
            for name, part in self.parts.items()
        }
        sent = {name: tensors for name, tensors in extras.items() if tensors}
        return Message(round, self.weights, sent, self._readdress if self._addressing else None)

    def send(self, round: int) -> Message:
        """The message that clients get: the ``broadcast``, which a subclass may compress.

        Called once in a round, before training.
        """
        return self.broadcast(round)

    def sent_to(self, clients: Collection[int]) -> None:
        """A hook for subclasses, called after ``send`` with the clients that get the message."""

    def _readdress(self, message: Message, client: int) -> Message:
        """The message to this client, after every part's ``message_to`` and ``extras_to``."""
        weights, extras = message.weights, dict(message.extras)
        for name, part in self._addressing.items():
            whose = name, part, f"message_to({client}, ...)"
            sent = PartMessage(message.round, weights, extras.get(name, {}))
            own = results.instance(part.message_to(client, sent), PartMessage, *whose)
            weights = results.weights(own.weights, weights, *whose, may_add=True)
            results.tensors(own.extras, *whose)
            found = part.extras_to(client, own)
            if found is not own.extras:
                results.tensors(found, name, part, f"extras_to({client}, ...)")
            extras[name] = found
        return Message(
            message.round, weights, {name: sent for name, sent in extras.items() if sent}
        )

    def add(self, update: Update) -> None:
        """Give an update to the aggregator; keep the update without its weights for ``step``."""
        self.aggregator.add(update, self.weights)
        self._digests.updates.append(self._digest(update))

    def contribution(self) -> Contribution:
        """The updates of this process, for a reduction over processes."""
        return joined(self._reducibles())

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace the updates of this process by the updates of all processes."""
        split(self._reducibles(), sums, items)

    def step(self, accepts: Callable[[Tensors], bool] = lambda weights: True) -> int:
        """Compute the next global weights and call the parts' ``aggregate`` and ``correct``.

        If there is no update, or the aggregator refuses to merge the updates, nothing changes: the
        round is skipped. If ``accepts`` refuses the aggregator's result, the weights stay, and
        ``aggregate`` and ``correct`` are not called. If ``accepts`` refuses the result of
        ``correct``, the weights stay, but the other parts have changed. In all these cases the
        aggregator's ``commit`` is not called, and the clients' memories keep their changes.

        Args:
            accepts: weights -> whether they may become the global weights.

        Returns:
            The number of updates in all processes.
        """
        digests, self._digests = self._digests, _Digests()
        count = len(digests.updates)
        merged = self._merge() if count else self.weights
        is_merged = merged is not self.weights
        following = self._corrected(merged, digests, accepts) if is_merged else None
        self.refused = is_merged and following is None
        if following is None:
            self.idle_rounds += 1
            self._reporting = [self.aggregator] if count and not is_merged else []
        else:
            self.idle_rounds, self.weights = 0, following
            self._reporting = list(self.parts.values())
            self.aggregator.commit()
        return count

    def _merge(self) -> Tensors:
        """The aggregator's result; the current weights themselves if it refuses to merge."""
        merged = self.aggregator.merge(self.weights)
        if merged is self.weights:
            return merged
        whose = "aggregator", self.aggregator, "merge(...)"
        return results.weights(merged, self.weights, *whose)

    def _corrected(
        self, merged: Tensors, digests: "_Digests", accepts: Callable[[Tensors], bool]
    ) -> Tensors | None:
        """Let the parts correct the merged weights; None if ``accepts`` refuses the weights."""
        corrected = merged
        if not accepts(merged):
            return None
        updates = sorted(digests.updates, key=lambda update: update.client)
        for name, part in self.parts.items():
            part.aggregate([update.to(name) for update in updates])
            found = part.correct(self.weights, corrected, digests.sums_of(name), len(updates))
            if found is not corrected:
                whose = name, part, "correct(...)"
                corrected = results.weights(found, self.weights, *whose)
        return corrected if corrected is merged or accepts(corrected) else None

    def metrics(self) -> dict[str, float]:
        """The parts' metrics of the last round; empty if it was skipped or its weights refused.

        If the aggregator refused to merge the updates, only its metrics.
        """
        found = (
            results.numbers(part.metrics(), socket, part, "metrics()")
            for socket, part in self.parts.items()
            if part in self._reporting
        )
        return {name: value for of_part in found for name, value in of_part.items()}

    def state_dict(self) -> dict[str, Any]:
        """The global weights and the parts' server state, for a checkpoint."""
        states = {
            name: results.instance(part.server_state(), dict, name, part, "server_state()")
            for name, part in self.parts.items()
        }
        return {"weights": self.weights, "parts": states, "idle_rounds": self.idle_rounds}

    @property
    def state_nbytes(self) -> int:
        """Bytes of all tensors that the server keeps between rounds, in RAM or on disk."""
        return _nbytes(self.state_dict()) + _nbytes(self.fixed_state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a result of ``state_dict``; its tensors may be on another device.

        Raises:
            ValueError: a weight has another shape than the model's.
        """
        saved = state["weights"]
        for name, own in self.weights.items():
            if saved[name].shape != own.shape:
                found, expected = list(saved[name].shape), list(own.shape)
                raise ValueError(f"{name} is {found} in the file, {expected} in the model")
        self.idle_rounds = state.get("idle_rounds", 0)  # absent in older checkpoints
        self.weights = {name: saved[name].to(old.device) for name, old in self.weights.items()}
        for name, part in self.parts.items():
            part.load_server_state(state["parts"][name])

    def fixed_state(self) -> dict[str, Mapping[str, Tensors]]:
        """Socket -> ``Part.store`` of its part: tensors that never change after they are stored."""
        return {name: part.store for name, part in self.parts.items() if part.store}

    def load_fixed_state(self, state: Iterable[tuple[str, str, Tensors]]) -> None:
        """Put (socket, name, tensors) of a ``fixed_state`` back into the parts' stores."""
        for socket, name, tensors in state:
            store = self.parts[socket].store
            assert store is not None
            store[name] = tensors

    def _reducibles(self) -> dict[str, Reducible]:
        return {"weights": self.aggregator, "reports": self._digests}

    def _digest(self, update: Update) -> Update:
        """Return the update without its weights; its extras get the results of ``extract``.

        Reports of parts with ``summed`` leave the extras and are added to ``_digests.sums``.
        """
        extras: Extras = {}
        for name, part in self.parts.items():
            report = update.extras.get(name, {})
            extracted = part.extract(update.weights, self.weights)
            results.tensors(extracted, name, part, "extract(...)")
            if part.summed:
                self._digests.add(name, report)
                report = {}
            extras[name] = report | extracted
        return update.digest(extras)


class _Digests:
    """The cohort's updates without their weights, and sums of reported tensors.

    Attributes:
        updates: the updates, without weights and without the reports of ``summed`` parts.
        sums: ``SOCKET/NAME`` of a reported tensor of a part with ``summed`` -> its float64 sum over
            the updates.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.sums: Tensors = {}

    def add(self, socket: str, report: Tensors) -> None:
        """Add one client's ``report`` for a part to the sums, in float64.

        In float32 the sum would depend on the order in which the updates arrive. In float64 the
        order changes only digits that are lost when the sum is rounded to float32.
        """
        for key, value in prefixed(socket, report).items():
            if key in self.sums:
                self.sums[key].add_(value)
            else:
                self.sums[key] = value.to(torch.float64, copy=True)

    def sums_of(self, socket: str) -> Tensors:
        """Name of a reported tensor of the part in this socket -> sum."""
        return with_prefix(socket, self.sums)

    def contribution(self) -> Contribution:
        """This process's sums of reported tensors, and its updates without weights."""
        return Contribution(self.sums, self.updates)

    def set_reduced(self, sums: Tensors, items: Sequence[list[Update]]) -> None:
        """Replace this process's sums and updates by the sums and updates of all processes."""
        self.sums = sums
        self.updates = list(chain(*items))


def _nbytes(state: Any) -> int:
    """Bytes of the tensors in nested mappings and sequences.

    If a mapping has an attribute ``nbytes``, as a ``TensorStore`` on disk has, this number is used
    and the tensors are not read.
    """
    if (size := getattr(state, "nbytes", None)) is not None:
        return int(size)
    if isinstance(state, Mapping):
        return sum(map(_nbytes, state.values()))
    return sum(map(_nbytes, state)) if isinstance(state, list | tuple) else 0
