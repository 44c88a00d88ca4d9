"""Keeps the best global model so far, for a file and for methods that tune it."""

import math
from typing import Any

from fedexp.core.messages import Message, copied
from fedexp.core.part import Setting
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Measure, Measured


class Best(Measure):
    """Keeps a copy of the most accurate global model so far.

    If several models are equally accurate, the earliest is kept. With validation data, only their
    accuracy counts, and the best model is written to ``checkpoints/best.pt`` after the run. Without
    validation data, accuracy is measured on the test split, and the copy is kept only if the method
    tunes models from the best global model (``personalization=finetune_best``) and they are
    measured: personal models, or those of held-out clients. Rounds without this accuracy are left
    out. Measures that come later in the config get the best model.

    Attributes:
        score: the highest accuracy so far; -inf before the first scored round.
        message: weights and extras of the most accurate model; None before the first scored round.
    """

    def __init__(self) -> None:
        self.score = -math.inf
        self.message: Message | None = None
        self._is_tuned = self._validates = False

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Find out whether the method tunes the best model, and whether a file is written."""
        scores_tuned = resources.store.keeps_models or bool(resources.data.held_out_clients)
        self._is_tuned = scores_tuned and resources.personalization.tunes == "best"
        has_global = resources.personalization.has_global
        self._validates = has_global and len(resources.data.validation) > 0

    def due(self, round: int, rounds: int) -> bool:
        """True after every round, if the method tunes the best model or a file is written."""
        return (self._is_tuned or self._validates) and round > 0

    def __call__(self, after: AfterRound) -> Measured:
        """Update the best model so far; the result has it only if the method tunes it."""
        kind = "validation" if self._validates else "global"
        own = after.found.metrics.get(f"{kind}/accuracy", -math.inf)
        score = after.ranks.from_first(lambda: own)
        if score > self.score:
            self.score, self.message = score, copied(after.message)
        return Measured(best_model=self.message if self._is_tuned else None)

    @property
    def chosen(self) -> Message | None:  # type: ignore[override]
        """The most accurate model on validation data; None if there are no validation data."""
        return self.message if self._validates else None

    def state_dict(self) -> dict[str, Any]:
        """The best score and its model; empty before the first scored round."""
        return {"score": self.score, **vars(self.message)} if self.message else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        message = dict(state)
        self.score = message.pop("score")
        self.message = Message(**message)
