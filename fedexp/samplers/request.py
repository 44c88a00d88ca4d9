"""A request to a sampler for clients, and the sampler's answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Request:
    """Asks a sampler for clients, by default for a whole cohort.

    Attributes:
        places: the largest number of clients to choose. None means K.
        busy: numbers of clients that cannot be chosen.
        selection: 0 for the first selection in a round, 1 for the second, and so on. The sampler's
            random draws depend on this number.
        waits: whether the simulated clock may advance until a client is available, if there is none
            now.
    """

    places: int | None = None
    busy: Collection[int] = ()
    selection: int = 0
    waits: bool = True


class Selected(NamedTuple):
    """The clients that a sampler chose.

    Attributes:
        clients: numbers of all chosen clients.
        training: numbers of the chosen clients that train in this process. Clients that drop out
            are left out.
    """

    clients: Sequence[int]
    training: Sequence[int]
