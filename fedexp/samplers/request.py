"""A request for clients, and the answer to it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Request:
    """The clients that are wanted from a sampler; by default a whole cohort.

    Attributes:
        places: the largest number of clients; None for K.
        busy: clients that cannot be chosen.
        selection: number of the selection in its round, from 0. Random draws depend on it.
        waits: whether the clock advances to the next arrival of a client if nobody is available.
    """

    places: int | None = None
    busy: Collection[int] = ()
    selection: int = 0
    waits: bool = True


class Selected(NamedTuple):
    """The clients that a sampler chose.

    Attributes:
        clients: all of them.
        training: the clients of this process that train now, without clients that drop out.
    """

    clients: Sequence[int]
    training: Sequence[int]
