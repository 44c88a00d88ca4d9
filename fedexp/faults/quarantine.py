"""Quarantine of updates and merged weights that contain NaN or infinity."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from fedexp.contract import Contribution, Tensors, Update
from fedexp.core.named_tensors import floats
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)
Policy = Literal["quarantine", "raise"]
_SHOWN = 4  # further clients that a line names


class Quarantine:
    """Refuses updates and merged weights that are not finite.

    Args:
        policy: with ``quarantine`` an update that is not finite is not merged, and merged weights
            that are not finite do not replace the global model; a warning is logged. With
            ``raise``, an InputError is raised instead.

    Attributes:
        clients: the clients whose updates were refused in this round.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.clients: list[int] = []
        self._tensors: list[str] = []

    def begin_round(self) -> None:
        """Forget the clients whose updates were refused in the last round."""
        self.clients, self._tensors = [], []

    def accepts(self, update: Update, round: int) -> bool:
        """Whether the update is finite. If not, its client is added to ``clients``.

        Raises:
            InputError: the update is not finite, and ``policy`` is ``raise``.
        """
        if update.is_finite:
            return True
        self.clients.append(update.client)
        self._tensors.append(_named(_tensors(update)))
        if self.policy == "raise":
            raise InputError(f"on_bad_update=raise: {self._refused(round)}")
        return False

    def warn(self, round: int, accepted: int) -> None:
        """Log one line about the updates that were refused in this round, if any.

        Args:
            round: the number of the round.
            accepted: the number of updates that were accepted.
        """
        if len(self.clients) == 1:
            LOGGER.warning("%s; it is left out", self._refused(round))
        elif self.clients:
            first, *others = self.clients
            shown = ", ".join(map(str, others[:_SHOWN])) + (", ..." if others[_SHOWN:] else "")
            LOGGER.warning(
                "round %d: %d of %d updates are not finite (client %d: %s; also clients %s); they "
                "are left out",
                *(round, len(self.clients), len(self.clients) + accepted),
                *(first, self._tensors[0], shown),
            )

    def accepts_model(self, weights: Tensors, round: int) -> bool:
        """Whether these merged weights are finite.

        Raises:
            InputError: the weights are not finite, and ``policy`` is ``raise``.
        """
        checked = floats(weights)
        if _all_finite(checked.values()):
            return True
        what = f"round {round}: the merged model is not finite ({_named(checked)})"
        if self.policy == "raise":
            raise InputError(f"on_bad_update=raise: {what}")
        LOGGER.warning("%s; the global model stays as it was", what)
        return False

    def contribution(self) -> Contribution:
        """The clients whose updates this process refused, with the tensors to name."""
        return Contribution(items=list(zip(self.clients, self._tensors, strict=True)))

    def set_reduced(self, sums: Tensors, items: Sequence[list[tuple[int, str]]]) -> None:
        """Add to ``clients`` the clients whose updates the other processes refused."""
        for client, tensors in chain(*items):
            if client not in self.clients:
                self.clients.append(client)
                self._tensors.append(tensors)

    def _refused(self, round: int) -> str:
        """The update that was refused last, and its tensors."""
        client, tensors = self.clients[-1], self._tensors[-1]
        return f"round {round}: the update of client {client} is not finite ({tensors})"


def is_finite(update: Update, kept: Sequence[Tensors] = ()) -> bool:
    """Whether the weights and extras of an update, and ``kept``, are free of NaN and infinity.

    Args:
        update: the client's update.
        kept: the weights that the client does not send: private layers or a separate model.
    """
    return _all_finite(_floats(update, kept))


def has_finite_sums(update: Update, kept: Sequence[Tensors], device: torch.device) -> Tensor:
    """A fast check to make before ``is_finite``: whether the sum of each tensor is finite.

    The result is a bool scalar on ``device``. If it is true, the update is finite. If it is false,
    call ``is_finite``, because a sum of finite numbers can overflow.
    """
    found = torch.ones((), dtype=torch.bool, device=device)
    for sums in _stacked(_sums(_floats(update, kept))):
        are_finite = sums.isfinite().all()
        if sums.device == device:
            found = are_finite
        elif not are_finite:  # on the CPU, so that nothing waits
            return torch.zeros_like(found)
    return found


def _floats(update: Update, kept: Sequence[Tensors]) -> Iterator[Tensor]:
    for tensors in (_tensors(update), *map(floats, kept)):
        yield from tensors.values()


def _named(tensors: Tensors) -> str:
    """Name the first tensor that is not finite and its row, and count the others.

    If all are finite, the cause must be the weights that the client keeps; the text says so.
    """
    bad = [name for name, value in tensors.items() if not _all_finite([value])]
    if not bad:
        return "weights that the client keeps"
    first = bad[0] + _row(tensors[bad[0]])
    return first + (f" and {len(bad) - 1} more" if bad[1:] else "")


def _row(value: Tensor) -> str:
    """The first row that is not finite, such as ``[3]``, if other rows are; otherwise empty.

    A report often has a row for each class, so the row names the class.
    """
    if not value.dim():
        return ""
    bad = ~value.isfinite().flatten(1).all(dim=1) if value.dim() > 1 else ~value.isfinite()
    return "" if bad.all() else f"[{int(bad.int().argmax())}]"


def _tensors(update: Update) -> dict[str, Tensor]:
    """The float tensors of an update, by their names in error messages."""
    named = dict(update.weights)
    for part, report in update.extras.items():
        named |= {f"{part}: {name}": value for name, value in report.items()}
    return floats(named)


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    # If a sum is finite, so are all its terms, and a sum is much cheaper to check. The terms are
    # checked only if a sum is not finite. All tensors share one check, because each check waits for
    # the GPU.
    values = [value for value in tensors if value.numel()]
    if all(bool(sums.isfinite().all()) for sums in _stacked(_sums(values))):
        return True
    return all(bool(each.all()) for each in _stacked(value.isfinite().all() for value in values))


def _stacked(scalars: Iterable[Tensor]) -> list[Tensor]:
    """The scalars as one vector for each of their devices.

    Reports may be on the CPU, such as a number of steps, while the weights are on a GPU.
    """
    groups: dict[torch.device, list[Tensor]] = {}
    for each in scalars:
        groups.setdefault(each.device, []).append(each)
    return [torch.stack(group) for group in groups.values()]


def _sums(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [value.sum() for value in tensors if value.numel()]
