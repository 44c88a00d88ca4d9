"""The message and the update: everything that is sent between server and clients in a round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

Tensors = dict[str, Tensor]
"""Name -> tensor: a state dict, or the tensors that one part sends."""

Extras = dict[str, Tensors]
"""Socket ("head", "loss", ...) -> the named tensors of its part."""


@dataclass(frozen=True)
class PartMessage:
    """A ``Message`` for one part: it has the extras of this part only."""

    round: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class PartUpdate:
    """An ``Update`` for one part: it has the extras of this part only."""

    client: int
    num_samples: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    draws: int = 1


@dataclass(frozen=True)
class Message:
    """Server to client: the global weights of a round and the parts' extra tensors.

    Attributes:
        round: the number of the round.
        weights: the global weights.
        extras: the parts' tensors.
        readdress: a function (this message, client) -> the message to this client. None: all
            clients get this message.
        weights_nbytes: bytes of the compressed weights; None if they are not compressed.
    """

    round: int
    weights: Tensors
    extras: Extras = field(default_factory=dict)
    readdress: Callable[[Message, int], Message] | None = None
    weights_nbytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of weights and extras; compressed weights count with their compressed size."""
        return _traffic(self)

    def to_client(self, client: int) -> Message:
        """The message that this client downloads."""
        return self if self.readdress is None else self.readdress(self, client)

    def bytes_to_each(self, clients: Collection[int]) -> dict[int, int]:
        """The number of bytes that each of these clients downloads: client -> bytes."""
        if self.readdress is None:
            return dict.fromkeys(clients, self.nbytes)
        return {client: self.to_client(client).nbytes for client in clients}

    def to(self, part: str) -> PartMessage:
        """The message for the part in this socket."""
        return PartMessage(self.round, self.weights, self.extras.get(part, {}))


@dataclass(frozen=True)
class Update:
    """Client to server: the locally trained weights and the parts' reports.

    ``metrics`` and ``directions`` are for the log and are not counted as traffic.

    Attributes:
        client: the number of the client.
        num_samples: n_k, the number of the client's training samples.
        weights: the shared weights after local training.
        extras: the parts' reports.
        metrics: name -> value: ``loss``, ``cross_entropy``, and the values that parts log.
        directions: name -> a change of the parameters (parameter name -> tensor). The log compares
            it with the round's change of the global weights.
        steps: gradient steps of local training. If a separate personal model is trained afterwards,
            its steps do not count.
        samples: training samples in the batches of these steps; a sample counts in each batch.
        draws: how often the sampler drew this client. The client trains once; its update counts
            ``draws`` times.
        is_finite: whether the weights, the extras and the weights that the client keeps are free of
            NaN and infinity; engines check it.
        is_late: whether the update misses the simulated deadline; then the server never gets it.
        weights_nbytes: bytes of the compressed weights; None if they are not compressed.
    """

    client: int
    num_samples: int
    weights: Tensors
    extras: Extras = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    directions: Mapping[str, Tensors] = field(default_factory=dict)
    steps: int = 0
    samples: int = 0
    draws: int = 1
    is_finite: bool = True
    is_late: bool = False
    weights_nbytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that this client uploads: weights, in their compressed size if any, and extras."""
        return _traffic(self)

    def to(self, part: str) -> PartUpdate:
        """The update for the part in this socket."""
        extras = self.extras.get(part, {})
        return PartUpdate(self.client, self.num_samples, self.weights, extras, self.draws)

    def digest(self, extras: Extras) -> Update:
        """The update to keep after aggregation: with ``extras``, without weights and directions."""
        return replace(self, weights={}, directions={}, extras=extras)

    def with_step(
        self, base: Tensors, current: Tensors, factor: float, parameters: Collection[str]
    ) -> Update:
        """The update whose weights are current + factor (w_k - base) in place of w_k.

        Buffers, such as BatchNorm's statistics, stay as the client sent them: a variance plus a
        step could be negative.

        Args:
            base: the weights that the client's step counts from.
            current: the weights that the step is added to.
            factor: factor of the step.
            parameters: names of the weights that are parameters.
        """
        moved = {
            name: current[name] + factor * (value - base[name])
            for name, value in self.weights.items()
            if name in parameters
        }
        return replace(self, weights=self.weights | moved)


def count_bytes(*groups: Mapping[str, Tensor]) -> int:
    """Total bytes of all tensors in the given mappings."""
    tensors: Iterable[Tensor] = (tensor for group in groups for tensor in group.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _traffic(sent: Message | Update) -> int:
    """Bytes of weights and extras; compressed weights count with their compressed size."""
    extras = count_bytes(*sent.extras.values())
    weights = sent.weights_nbytes
    return extras + (count_bytes(sent.weights) if weights is None else weights)


def copied(message: Message) -> Message:
    """A message with copied tensors, because parts may later change the tensors that they sent.

    The copy has neither ``readdress`` nor ``weights_nbytes``.
    """
    extras = {part: _copy(tensors) for part, tensors in message.extras.items()}
    return Message(message.round, _copy(message.weights), extras)


def _copy(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
