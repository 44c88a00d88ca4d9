"""The best global model so far."""

import math
from dataclasses import replace
from typing import Any

from fedexp.core.messages import Message, Tensors


class BestModel:
    """A copy of the global model of the round with the highest score; of equal ones the earliest.

    Attributes:
        score: its score; -inf before the first.
        message: its weights and what the parts sent with them; None before the first.
    """

    def __init__(self) -> None:
        self.score = -math.inf
        self.message: Message | None = None

    def observe(self, score: float, message: Message) -> None:
        """Copy the model in ``message`` if ``score`` is higher than all before."""
        if score > self.score:
            self.score, self.message = score, copied(message)

    def state_dict(self) -> dict[str, Any]:
        """Score and model, for a checkpoint; empty before the first."""
        return {"score": self.score, **vars(self.message)} if self.message else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        message = dict(state)
        if message:
            self.score = message.pop("score")
            self.message = Message(**message)


def copied(message: Message) -> Message:
    """The message with tensors of its own: parts may change in place what they send."""
    extras = {part: _copy(tensors) for part, tensors in message.extras.items()}
    return replace(message, weights=_copy(message.weights), extras=extras)


def _copy(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
