"""Several processes that share one federation: what they tell each other, and how.

Each process, a rank, trains some of the cohort's clients. There is no server process: once the
ranks know what came in at the others, every one of them takes the same server step.
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
    """What one rank has of a round.

    Attributes:
        sums: name -> tensor, to be added up over the ranks; one that a rank lacks is zero there.
        items: anything else, which every rank gets from every rank.
    """

    sums: Tensors = field(default_factory=dict)
    items: Any = None


class Reducible(Protocol):
    """What sees updates, and so must learn what its likes at the other ranks have seen."""

    def contribution(self) -> Contribution:
        """What it has seen at this rank."""

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Be as if it had seen everything: the sums, float64, and the lists in order of ranks."""


class Ranks:
    """The processes of a run; the base class itself is one process, which talks to nobody.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that measures the global model, writes and draws."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """Everybody's value, in order of ranks; tensors come on this rank's device."""
        return [value]

    def gather_pairs(self, pairs: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Everybody's (client, something), in order of clients; no client is at two ranks."""
        yield from sorted(chain(*self.all_gather(list(pairs))), key=lambda pair: pair[0])

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """Everybody's items, of which each rank has one at a time in its memory.

        All ranks must go through it to the end.
        """
        yield from items

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives at the first rank, where alone it is called."""
        made = self.all_gather(make() if self.is_first else None)[0]
        return cast(T, made)

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Let the ``parties``, the same ones in each rank, share what they have seen.

        One gather and one sum, however many parties there are.
        """


class ProcessGroup(Ranks):
    """The ranks of Fabric's ``torch.distributed`` group; ``fabric`` has been launched."""

    def __init__(self, fabric: Fabric) -> None:
        self.rank, self.size, self.device = fabric.global_rank, fabric.world_size, fabric.device

    def all_gather(self, value: T) -> list[T]:
        """Everybody's value, in order of ranks; tensors come on this rank's device."""
        content = io.BytesIO()
        torch.save(value, content)
        found = [b""] * self.size
        dist.all_gather_object(found, content.getvalue())
        # Not only weights, but nobody except this run's own processes can have written it.
        return [
            torch.load(io.BytesIO(each), map_location=self._to_here, weights_only=False)
            for each in found
        ]

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """Everybody's items, of which each rank has one at a time in its memory."""
        mine = iter(items)
        while found := list(chain(*self.all_gather(list(islice(mine, 1))))):
            yield from found

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Let the ``parties``, the same ones in each rank, share what they have seen."""
        shares = [party.contribution() for party in parties]
        known = self.all_gather([(share.items, _shapes(share.sums)) for share in shares])
        of_parties = [[each[place] for each in known] for place in range(len(parties))]
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

    def _to_here(self, storage: Any, location: str) -> Any:
        """What lay in RAM stays there; what lay on a rank's device comes on this one's."""
        here = location if location == "cpu" else str(self.device)
        return default_restore_location(storage, here)  # type: ignore[no-untyped-call]


def ranks_of(fabric: Fabric) -> Ranks:
    """The processes that ``fabric``, launched, is one of."""
    return ProcessGroup(fabric) if fabric.world_size > 1 else Ranks()


_Shapes = dict[str, torch.Size]


def _shapes(tensors: Tensors) -> _Shapes:
    return {name: value.shape for name, value in tensors.items()}


def _union(shapes: Sequence[_Shapes]) -> _Shapes:
    """All names, in the same order in every rank."""
    return {name: shape for each in shapes for name, shape in each.items()}


def _flatten(tensors: Tensors, shapes: _Shapes, device: torch.device) -> Tensor:
    """One float64 vector; zero for what is not among ``tensors``."""
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
