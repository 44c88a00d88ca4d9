"""Several processes that share one federation, and what they exchange.

Each process, a rank, trains some of the cohort's clients. There is no server process: after the
updates of all ranks are reduced, every rank takes the same server step.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import prod
from typing import Any, Protocol, TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch import distributed as dist
from torch.serialization import default_restore_location

T = TypeVar("T")

Tensors = dict[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class Contribution:
    """What one rank contributes to an all-reduce.

    Attributes:
        sums: name -> tensor, summed over the ranks; one that a rank lacks is zero there.
        items: anything else; every rank gets it from every rank.
    """

    sums: Tensors = field(default_factory=dict)
    items: Any = None


class Reducible(Protocol):
    """Something that observes updates at each rank, and is reduced over the ranks."""

    def contribution(self) -> Contribution:
        """What it has observed at this rank."""

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Take over the result: the float64 sums, and every rank's items in order of ranks."""


class Ranks:
    """The processes of a run; the base class is a run of one process.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates the global model, writes files and draws figures."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in order of ranks; tensors are moved to this rank's device."""
        return [value]

    def gather_pairs(self, pairs: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """The (client, value) pairs of all ranks, in order of clients, each at one rank only."""
        yield from sorted(chain(*self.all_gather(list(pairs))), key=lambda pair: pair[0])

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """The items of all ranks, of which each rank holds one at a time in memory.

        All ranks must iterate to the end.
        """
        yield from items

    def from_first(self, make: Callable[[], T]) -> T:
        """The result of ``make``, which only the first rank calls, at all ranks."""
        made = self.all_gather(make() if self.is_first else None)[0]
        return cast(T, made)

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Reduce each of ``parties``, the same ones at each rank, over the ranks.

        One gather and one sum, whatever their number.
        """


class ProcessGroup(Ranks):
    """The ranks of Fabric's ``torch.distributed`` group; ``fabric`` has been launched."""

    def __init__(self, fabric: Fabric) -> None:
        self.rank, self.size, self.device = fabric.global_rank, fabric.world_size, fabric.device

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in order of ranks; tensors are moved to this rank's device."""
        content = io.BytesIO()
        torch.save(value, content)
        found = [b""] * self.size
        dist.all_gather_object(found, content.getvalue())
        # These are not only weights, but only processes of this run can have sent them.
        return [
            torch.load(io.BytesIO(each), map_location=self._to_this_device, weights_only=False)
            for each in found
        ]

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """The items of all ranks, of which each rank holds one at a time in memory."""
        own = iter(items)
        while found := list(chain(*self.all_gather(list(islice(own, 1))))):
            yield from found

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Reduce each of ``parties``, the same ones at each rank, over the ranks."""
        shares = [party.contribution() for party in parties]
        gathered = self.all_gather([(share.items, _shapes(share.sums)) for share in shares])
        of_parties = [[each[place] for each in gathered] for place in range(len(parties))]
        shapes = [_union([shapes for _, shapes in of_party]) for of_party in of_parties]
        flat = [
            _flatten(share.sums, wanted, self.device)
            for share, wanted in zip(shares, shapes, strict=True)
        ]
        total = torch.cat(flat)
        dist.all_reduce(total)
        pieces = torch.split(total, [len(each) for each in flat])
        for party, of_party, wanted, sums in zip(parties, of_parties, shapes, pieces, strict=True):
            party.set_reduced(_unflatten(sums, wanted), [items for items, _ in of_party])

    def _to_this_device(self, storage: Any, location: str) -> Any:
        """CPU storages stay on the CPU; those of another rank's device go to this rank's."""
        target = location if location == "cpu" else str(self.device)
        return default_restore_location(storage, target)  # type: ignore[no-untyped-call]


def ranks_of(fabric: Fabric) -> Ranks:
    """The processes of the run that ``fabric``, launched, belongs to."""
    return ProcessGroup(fabric) if fabric.world_size > 1 else Ranks()


_Shapes = dict[str, torch.Size]


def _shapes(tensors: Tensors) -> _Shapes:
    return {name: value.shape for name, value in tensors.items()}


def _union(shapes: Sequence[_Shapes]) -> _Shapes:
    """All names, in the same order at every rank."""
    return {name: shape for each in shapes for name, shape in each.items()}


def _flatten(tensors: Tensors, shapes: _Shapes, device: torch.device) -> Tensor:
    """One float64 vector; zeros for names that are not in ``tensors``."""
    flat = [
        tensors[name].to(device, torch.float64).flatten()
        if name in tensors
        else torch.zeros(prod(shape), dtype=torch.float64, device=device)
        for name, shape in shapes.items()
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=device), *flat])


def _unflatten(flat: Tensor, shapes: _Shapes) -> Tensors:
    """Inverse of ``_flatten``."""
    pieces = torch.split(flat, [prod(shape) for shape in shapes.values()])
    return {n: piece.view(shapes[n]) for n, piece in zip(shapes, pieces, strict=True)}
