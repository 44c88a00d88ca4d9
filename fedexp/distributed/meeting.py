"""The first meeting of the ranks that SLURM has started, on one machine or several.

PyTorch waits in silence for a rank that never comes. Here the waiting has a limit, and a line says
which ranks are awaited at which address.
"""

import logging
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

_QUIET_S = 5.0
"""Seconds before a line says who is awaited."""

_POLL_S = 0.05
_ADVICE = (
    "MASTER_ADDR and MASTER_PORT set an address of the first machine that the others reach; "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME set the network interface"
)


def meet(address: str, port: int, rank: int, size: int, limit_s: float) -> Any:
    """Wait for all ranks; return the store through which they set up their connections.

    Args:
        address: the name or number of the first rank's machine.
        port: the port at which the first rank listens.
        rank: the number of this process.
        size: the number of ranks.
        limit_s: seconds to wait for the others.

    Raises:
        InputError: the name cannot be resolved, the port is taken or cannot be reached, or ranks
            are still missing after ``limit_s``.
    """
    place = f"{address}:{port}"
    try:
        socket.getaddrinfo(address, port)
    except OSError as error:
        raise InputError(
            f"MASTER_ADDR={address}: rank {rank} cannot resolve this name of the first machine "
            f"({error.strerror or error}); {_ADVICE}"
        ) from None
    end = time.monotonic() + limit_s
    if rank > 0:
        _wait_for(lambda: [] if _listens(address, port) else [0], rank, size, place, end, limit_s)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address,
            port,
            size,
            is_master=rank == 0,
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,
        )
        store.set(_key(rank), "")
        awaited = range(size)
        _wait_for(
            lambda: [each for each in awaited if not store.check([_key(each)])],
            *(rank, size, place, end, limit_s),
        )
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{place}: rank {rank} of {size} cannot use it ({reason}); {_ADVICE}"
        ) from error
    return store


def _wait_for(
    missing: Callable[[], list[int]], rank: int, size: int, place: str, end: float, limit_s: float
) -> None:
    """Wait until ``missing`` names no rank; raises InputError at the time ``end``."""
    speak = time.monotonic() + _QUIET_S
    while ranks := missing():
        names = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))} of {size}"
        if time.monotonic() >= end:
            raise InputError(
                f"engine.meeting_timeout={limit_s:g}: {names} did not come to {place}; {_ADVICE}"
            )
        if time.monotonic() >= speak:
            LOGGER.warning("rank %d waits for %s at %s", rank, names, place)
            speak = end
        time.sleep(_POLL_S)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _key(rank: int) -> str:
    return f"fedexp/here/{rank}"
