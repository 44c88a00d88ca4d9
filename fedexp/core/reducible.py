"""Reductions over processes: sums of tensors, and values that each process sends to all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedexp.core import results
from fedexp.core.messages import Tensors


@dataclass(frozen=True)
class Contribution:
    """One process's contribution to a reduction.

    Attributes:
        sums: name -> tensor to sum over the processes; a missing name counts as zero.
        items: any other value, sent to all processes: numbers, strings, tensors, and lists, tuples,
            dicts or dataclasses of them.
    """

    sums: Tensors = field(default_factory=dict)
    items: Any = None


class Reducible(Protocol):
    """An object that collects data in each process; its data are then reduced over processes."""

    def contribution(self) -> Contribution:
        """The data that this process has collected, for the reduction over processes."""

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace the collected data by the float64 sums and all ranks' items, in rank order."""


def joined(parties: Mapping[str, Reducible]) -> Contribution:
    """Join the contributions of all ``parties`` into one; ``split`` divides the reduced result."""
    shares = {
        name: results.instance(party.contribution(), Contribution, name, party, "contribution()")
        for name, party in parties.items()
    }
    for name, share in shares.items():
        results.tensors(share.sums, name, parties[name], "contribution().sums")
    sums = {f"{name}:{key}": v for name, share in shares.items() for key, v in share.sums.items()}
    return Contribution(sums, {name: share.items for name, share in shares.items()})


def split(parties: Mapping[str, Reducible], sums: Tensors, items: Sequence[Any]) -> None:
    """Divide the reduced result of ``joined``: each object gets its share by ``set_reduced``."""
    own: dict[str, Tensors] = {name: {} for name in parties}
    for key, value in sums.items():
        name, _, rest = key.partition(":")
        own[name][rest] = value
    for name, party in parties.items():
        party.set_reduced(own[name], [rank_items[name] for rank_items in items])
