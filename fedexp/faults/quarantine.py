"""Updates that hold NaN or infinity do not reach the server."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from fedexp.core.messages import Tensors, Update
from fedexp.distributed.ranks import Contribution
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)
Policy = Literal["quarantine", "raise"]


class Quarantine:
    """Lets updates pass that are finite in all that they bring: weights and the parts' reports.

    Args:
        policy: leave the others out and say so, or raise an error.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.clients: list[int] = []
        self._reasons: list[str] = []

    def finite(self, updates: Iterable[Update], round: int) -> Iterator[Update]:
        """The finite ones; ``clients`` are afterwards those whose update was not.

        Raises:
            InputError: one is not finite, and ``policy`` is raise.
        """
        self.clients, self._reasons = [], []
        for update in updates:
            if is_finite(update):
                yield update
                continue
            tensors = _tensors(update)
            bad = [name for name, value in tensors.items() if not _all_finite([value])]
            others = f" and {len(bad) - 1} more" if bad[1:] else ""
            what = f"round {round}: the update of client {update.client} is not finite"
            what += f" ({bad[0]}{others})"
            if self.policy == "raise":
                raise InputError(f"on_bad_update=raise: {what}")
            self._leave_out(update.client, what)

    def contribution(self) -> Contribution:
        """Who was left out at this rank, and why."""
        return Contribution(items=list(zip(self.clients, self._reasons, strict=True)))

    def set_reduced(self, sums: Tensors, items: Sequence[list[tuple[int, str]]]) -> None:
        """Who was left out at any."""
        for client, reason in chain(*items):
            if client not in self.clients:
                self._leave_out(client, reason)

    def metrics(self) -> dict[str, float]:
        """How many updates of this round were left out."""
        return {"clients/quarantined": len(self.clients)}

    def _leave_out(self, client: int, reason: str) -> None:
        LOGGER.warning("%s; it is left out", reason)
        self.clients.append(client)
        self._reasons.append(reason)


def is_finite(update: Update) -> bool:
    """Whether there is neither NaN nor infinity in its weights and in the parts' reports."""
    return _all_finite(_tensors(update).values())


def _tensors(update: Update) -> dict[str, Tensor]:
    """Every float tensor by the name under which a user knows it."""
    named = dict(update.weights)
    for part, report in update.extras.items():
        named |= {f"{part}: {name}": value for name, value in report.items()}
    return {name: value for name, value in named.items() if value.is_floating_point()}


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    # A sum of finite numbers can be infinite, but not the other way round, and it is much cheaper.
    # One answer for all tensors: asking a GPU for each would wait for it each time.
    values = [value for value in tensors if value.numel()]
    if not values or bool(torch.stack([value.sum() for value in values]).isfinite().all()):
        return True
    return bool(torch.stack([value.isfinite().all() for value in values]).all())
