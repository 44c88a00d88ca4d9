"""The two messages of a round: everything that is sent between server and clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors: a state dict, or what one part sends."""

Extras = dict[str, Tensors]
"""Part name ("head", "loss", ...) -> that part's named tensors."""


@dataclass(frozen=True)
class Message:
    """Server to client: the global weights of a round and what the parts add to them."""

    round: int
    weights: Tensors
    extras: Extras = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor in the message: what one client downloads."""
        return count_bytes(self.weights, *self.extras.values())


@dataclass(frozen=True)
class Update:
    """Client to server: the locally trained weights and what the parts report.

    ``metrics`` and ``directions`` are for the log and are not counted as traffic.

    Attributes:
        client: the client that sends it.
        num_samples: n_k.
        weights: the trained weights that are shared.
        extras: what the parts report.
        metrics: name -> value: ``loss``, ``cross_entropy``, and those in ``ClientModule.logged``.
        directions: name -> a step in parameter space, to be compared with the global step.
        draws: how often the sampler drew this client; it trains once and has this multiplicity.
        is_finite: whether weights and extras hold neither NaN nor infinity; None: not checked.
    """

    client: int
    num_samples: int
    weights: Tensors
    extras: Extras = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    directions: Mapping[str, Tensors] = field(default_factory=dict)
    draws: int = 1
    is_finite: bool | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor in the update: what this client uploads."""
        return count_bytes(self.weights, *self.extras.values())

    def digest(self, extras: Extras) -> "Update":
        """What is kept of the update after its weights have been aggregated."""
        return replace(self, weights={}, directions={}, extras=extras)


def count_bytes(*groups: Mapping[str, Tensor]) -> int:
    """Total bytes of all tensors in the given mappings."""
    tensors: Iterable[Tensor] = (tensor for group in groups for tensor in group.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
