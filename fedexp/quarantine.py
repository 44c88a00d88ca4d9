"""Updates that hold NaN or infinity do not reach the server."""

import logging
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from fedexp.errors import InputError
from fedexp.messages import Update

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

    def watch(self, updates: Iterable[Update], round: int) -> Iterator[Update]:
        """The finite ones; ``clients`` are afterwards those whose update was not.

        Raises:
            InputError: one is not finite, and ``policy`` is raise.
        """
        self.clients = []
        for update in updates:
            tensors = _tensors(update)
            if _all_finite(tensors.values()):
                yield update
                continue
            bad = [name for name, value in tensors.items() if not _all_finite([value])]
            others = f" and {len(bad) - 1} more" if bad[1:] else ""
            what = f"round {round}: the update of client {update.client} is not finite"
            what += f" ({bad[0]}{others})"
            if self.policy == "raise":
                raise InputError(f"on_bad_update=raise: {what}")
            LOGGER.warning("%s; it is left out", what)
            self.clients.append(update.client)

    def metrics(self) -> dict[str, float]:
        """How many updates of this round were left out."""
        return {"clients/quarantined": len(self.clients)}


def _tensors(update: Update) -> dict[str, Tensor]:
    """Every float tensor by the name under which a user knows it."""
    named = dict(update.weights)
    for part, report in update.extras.items():
        named |= {f"{part}: {name}": value for name, value in report.items()}
    return {name: value for name, value in named.items() if value.is_floating_point()}


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    # One answer for all tensors: asking a GPU for each would wait for it each time.
    found = [value.isfinite().all() for value in tensors]
    return not found or bool(torch.stack(found).all())
