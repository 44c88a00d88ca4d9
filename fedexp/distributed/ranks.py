"""The processes of one run, called ranks, and their exchange of values.

Each rank trains some of the cohort's clients. There is no server process: after the updates of all
ranks are summed, every rank takes the same server step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from math import prod
from typing import TypeVar, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch import distributed as dist

from fedexp.core.messages import Tensors
from fedexp.core.reducible import Reducible
from fedexp.distributed.wire import decode, encode

T = TypeVar("T")


class LostRankError(RuntimeError):
    """An exchange of ``rank`` failed, because another rank has ended or cannot be reached."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} lost the connection to another rank")


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
        """The values of all ranks, by rank; GPU tensors are moved to this rank's device.

        ``fedexp.distributed.wire`` lists the types that can be sent.
        """
        return [value]

    def gather_pairs(self, pairs: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Yield all ranks' (client, value) pairs in order of clients; no client is at two ranks."""
        yield from sorted(chain(*self.all_gather(list(pairs))), key=lambda pair: pair[0])

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items of all ranks one by one, so that no rank holds all of them in memory.

        All ranks must iterate to the end.
        """
        yield from items

    def from_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` at the first rank only; return its result at all ranks."""
        made = self.all_gather(make() if self.is_first else None)[0]
        return cast(T, made)

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Combine the data that ``parties`` collected on all ranks, in a single exchange.

        A party is an object such as the server. Every rank must pass its copies of the same parties
        in the same order.
        """


class ProcessGroup(Ranks):
    """The ranks of the ``torch.distributed`` group of ``fabric``; ``fabric`` must be launched."""

    def __init__(self, fabric: Fabric) -> None:
        self.rank, self.size, self.device = fabric.global_rank, fabric.world_size, fabric.device
        sends_from_gpu = dist.get_backend() == "nccl"
        self._carrier = self.device if sends_from_gpu else torch.device("cpu")

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank; GPU tensors are moved to this rank's device."""
        own = encode(value).to(self._carrier)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._carrier) for _ in range(self.size)]
        self._exchange(dist.all_gather, sizes, torch.tensor([len(own)], device=self._carrier))
        lengths = [int(size) for size in sizes]
        padded = own.new_zeros(max(lengths))
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._exchange(dist.all_gather, found, padded)
        return [
            decode(content[:length].cpu(), self.device)
            for content, length in zip(found, lengths, strict=True)
        ]

    def iterate_gathered(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items of all ranks one by one, so that no rank holds all of them in memory."""
        own = iter(items)
        while found := list(chain(*self.all_gather(list(islice(own, 1))))):
            yield from found

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Combine the data that ``parties`` collected on all ranks; see the base class."""
        shares = [party.contribution() for party in parties]
        gathered = self.all_gather([(share.items, _shapes(share.sums)) for share in shares])
        of_parties = [[each[place] for each in gathered] for place in range(len(parties))]
        shapes = [_union([shapes for _, shapes in of_party]) for of_party in of_parties]
        flat = [
            _flatten(share.sums, wanted, self.device)
            for share, wanted in zip(shares, shapes, strict=True)
        ]
        total = torch.cat(flat).to(self._carrier)
        self._exchange(dist.all_reduce, total)
        pieces = torch.split(total.to(self.device), [len(each) for each in flat])
        for party, of_party, wanted, sums in zip(parties, of_parties, shapes, pieces, strict=True):
            party.set_reduced(_unflatten(sums, wanted), [items for items, _ in of_party])

    def _exchange(self, collective: Callable[..., object], *arguments: object) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise LostRankError(self.rank) from error


def ranks_of(fabric: Fabric) -> Ranks:
    """The processes (ranks) of the run, as a ``Ranks``; ``fabric`` must be launched."""
    return ProcessGroup(fabric) if fabric.world_size > 1 else Ranks()


@contextmanager
def first_rank_first(fabric: Fabric) -> Iterator[None]:
    """Let the first rank of each machine run the block before the machine's other ranks."""
    failure: BaseException | None = None
    try:
        with fabric.rank_zero_first(local=True):
            try:
                yield
            except BaseException as error:
                failure = error
                raise
    except RuntimeError as error:
        if error is failure:
            raise
        raise LostRankError(fabric.global_rank) from error


_Shapes = dict[str, tuple[int, ...]]


def _shapes(tensors: Tensors) -> _Shapes:
    return {name: value.shape for name, value in tensors.items()}


def _union(shapes: Sequence[_Shapes]) -> _Shapes:
    """Name -> shape, for the names of all ranks, in an order that is equal at every rank."""
    return {name: shape for each in shapes for name, shape in each.items()}


def _flatten(tensors: Tensors, shapes: _Shapes, device: torch.device) -> Tensor:
    """All tensors in one float64 vector, with zeros for names that ``tensors`` lacks."""
    flat = [
        tensors[name].to(device, torch.float64).flatten()
        if name in tensors
        else torch.zeros(prod(shape), dtype=torch.float64, device=device)
        for name, shape in shapes.items()
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=device), *flat])


def _unflatten(flat: Tensor, shapes: _Shapes) -> Tensors:
    """Cut the vector that ``_flatten`` made into tensors of these shapes; they stay float64."""
    pieces = torch.split(flat, [prod(shape) for shape in shapes.values()])
    return {n: piece.view(shapes[n]) for n, piece in zip(shapes, pieces, strict=True)}
