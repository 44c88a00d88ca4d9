"""Injected faults, drawn from the seed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat

from fedexp.compatibility.traits import Need
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import ClientData
from fedexp.faults.base import Faults
from fedexp.faults.views import LabelFlip, Straggler

Probability = Annotated[float, Field(ge=0, le=1)]


class Injected(Faults):
    """Drop-outs, stragglers, broken updates, and Byzantine clients.

    Drop-outs, stragglers and broken updates are drawn anew in every round, independently for each
    client of the cohort. The Byzantine clients are drawn once, from the clients with data. They
    attack in every round that they take part in, independently and without knowledge of other
    updates.

    An attack changes the parameters of the update, but neither buffers nor the reports of parts.
    ``label_flip`` changes only the training data: labels and class counts. A Byzantine client
    answers a sampler's probe honestly.

    Args:
        drop: probability that a chosen client drops out before it trains.
        straggle: probability that a client takes fewer steps.
        work: a straggler's share of the steps in each epoch, or of ``local.steps``, rounded down,
            at least one step.
        nan: probability that a client's whole update becomes NaN.
        byzantine: the share of Byzantine clients among the clients with data.
        attack: ``sign_flip`` sends w^t - factor (w_k - w^t), ``scale`` w^t + factor (w_k - w^t);
            ``label_flip`` trains on labels C - 1 - y.
        factor: ratio of the lengths of the sent step and the honest step.
    """

    def __init__(
        self,
        drop: Probability,
        straggle: Probability,
        work: Annotated[float, Field(gt=0, lt=1)],
        nan: Probability,
        byzantine: Probability,
        attack: Literal["sign_flip", "scale", "label_flip"],
        factor: PositiveFloat,
    ) -> None:
        self.drop, self.straggle, self.work, self.nan = drop, straggle, work, nan
        self.byzantine, self.attack, self.factor = byzantine, attack, factor
        self._flip = LabelFlip()
        if attack == "label_flip":
            self.needs = {
                Need.CLASS_LABELS: "faults.attack=label_flip: needs one class for each sample; "
                "use sign_flip or scale"
            }

    def setup(self, setting: Setting) -> None:
        """Draw the Byzantine clients."""
        self.seed = setting.seed
        self.parameters = setting.parameter_shapes.keys()
        eligible = np.flatnonzero(setting.client_sizes.numpy())
        count = round(self.byzantine * len(eligible))
        generator = numpy_generator(self.seed, "byzantine")
        self.byzantine_clients = frozenset(
            generator.choice(eligible, count, replace=False).tolist()
        )

    def drops_out(self, round: int, client: int) -> bool:
        """Drawn with probability ``drop``."""
        return self._occurs("drop", self.drop, round, client)

    def data(self, round: int, data: ClientData) -> ClientData:
        """Flipped labels, fewer steps, or both."""
        if self.attack == "label_flip" and data.client in self.byzantine_clients:
            data = self._flip(data)
        if self._straggles(round, data.client):
            data = Straggler(**vars(data), work=self.work)
        return data

    def corrupt(self, update: Update, message: Message) -> Update:
        """The update of a Byzantine client after its attack; all NaN if the update is broken."""
        if self._is_broken(message.round, update.client):
            extras = {name: _all_nan(report) for name, report in update.extras.items()}
            return replace(update, weights=_all_nan(update.weights), extras=extras)
        if self.attack == "label_flip" or update.client not in self.byzantine_clients:
            return update
        factor = self.factor if self.attack == "scale" else -self.factor
        attacked = {
            name: before + factor * (update.weights[name] - before)
            for name, before in message.weights.items()
            if name in self.parameters
        }
        return replace(update, weights=update.weights | attacked)

    def metrics(self, round: int, cohort: Sequence[int]) -> dict[str, float]:
        """The number of drop-outs; of the other clients, stragglers, NaN updates and Byzantine."""
        clients = set(cohort)
        present = {client for client in clients if not self.drops_out(round, client)}
        return {
            "faults/dropped": len(clients) - len(present),
            "faults/straggled": sum(self._straggles(round, client) for client in present),
            "faults/nan": sum(self._is_broken(round, client) for client in present),
            "faults/byzantine": len(present & self.byzantine_clients),
        }

    def _straggles(self, round: int, client: int) -> bool:
        return self._occurs("straggle", self.straggle, round, client)

    def _is_broken(self, round: int, client: int) -> bool:
        return self._occurs("nan", self.nan, round, client)

    def _occurs(self, fault: str, probability: float, round: int, client: int) -> bool:
        generator = numpy_generator(self.seed, f"faults/{fault}", round, client)
        return bool(generator.random() < probability)


def _all_nan(tensors: Tensors) -> Tensors:
    return {
        name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
        for name, value in tensors.items()
    }
