"""FedCDA: averages one recent model of each client, chosen so that the models are similar."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from fedexp.aggregators.average import Average, Weighting
from fedexp.aggregators.gathered import Gathered
from fedexp.contract import Client, Memory, PartUpdate, Setting, Tensors, TensorStore
from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

COMBINATIONS = 10_000
"""Largest number of combinations to compare in a batch. 8 clients with 3 models each have 6,561."""


@dataclass
class Totals:
    """Sums over the models selected so far.

    Attributes:
        count: the number of models.
        loss: the sum of the models' training losses F.
        square: the sum of the squared norms of the models' steps w_n - w^t from the global weights
            w^t, over parameters only.
        steps: name of a float weight -> the sum of the models' steps w_n - w^t, float64.
    """

    count: int
    loss: float
    square: float
    steps: Tensors


def best_combination(
    inner: np.ndarray,
    losses: Sequence[float],
    members: Sequence[Sequence[int]],
    totals: Totals,
    smoothness: float,
) -> tuple[int, ...]:
    """Choose one model of each client in a batch so that the objective is smallest (FedCDA).

    The objective is mean F + (L/2) (mean ||w||^2 - ||mean w||^2) over the models already selected
    and the chosen models together (Wang et al., ICLR 2024). F is the loss of a model and w its
    weights. Adding the same vector to the weights of all models does not change the objective. So w
    is here the step from the global weights: its squares are smaller, and less precision is lost.

    Args:
        inner: [M + 1, M + 1] inner products of the steps of the M candidates: all stored models of
            the batch's clients. The last row and column belong to the sum of steps over the models
            already selected.
        losses: the loss F of each candidate.
        members: for each client of the batch, the indices of its candidates, newest first. Among
            combinations with the same objective, the first one in this order is chosen.
        totals: sums over the models already selected.
        smoothness: L.

    Returns:
        The index of the chosen candidate of each client.
    """
    choices = np.array(list(product(*members)))  # [combinations, members]
    count = totals.count + len(members)
    loss = totals.loss + np.array(losses)[choices].sum(axis=1)
    square = totals.square + inner.diagonal()[choices].sum(axis=1)
    among = inner[choices[:, :, None], choices[:, None, :]].sum(axis=(1, 2))
    of_sum = inner[-1, -1] + 2 * inner[-1][choices].sum(axis=1) + among
    objective = loss / count + smoothness / 2 * (square / count - of_sum / count**2)
    return tuple(choices[objective.argmin()].tolist())


@dataclass
class Chosen:
    """Which models the server stores, and which of them it has selected.

    Attributes:
        round: the number of rounds that replaced the global weights.
        losses: client -> round -> the loss F of the model that the client sent in this round.
        selected: client -> the round of its selected model.
    """

    round: int = 0
    losses: dict[int, dict[int, float]] = field(default_factory=dict)
    selected: dict[int, int] = field(default_factory=dict)

    def next_round(self) -> "Chosen":
        """A copy for the next round, to which this round's models are added."""
        losses = {client: dict(own) for client, own in self.losses.items()}
        return Chosen(self.round + 1, losses, dict(self.selected))

    def names(self) -> set[str]:
        """The names of the stored models."""
        return {_name(client, round) for client, own in self.losses.items() for round in own}


class CrossRound(Gathered):
    """Cross-round divergence-aware aggregation (FedCDA; Wang et al., ICLR 2024).

    The server stores the last K models of each client and selects one of them. The global model is
    the mean of all selected models. In each round the cohort is divided at random into batches of
    clients. For one batch after another, ``best_combination`` selects a model of each client in the
    batch. It takes into account the models that are already selected, for clients outside the
    cohort and for clients of earlier batches. The loss F of a model is the mean cross-entropy in
    the last local epoch of its training. Float buffers are averaged too, but do not count in the
    objective. Integer buffers are copied from the newest selected model. If several models are
    equally new, the model of the client with the lowest number is used.

    If a client's update is lost, its selected model stays the same. A client that is drawn twice
    counts twice in the average of the warm-up, but otherwise once. Rounds that leave
    the global weights as they were do not count as warm-up, and their models are not stored.

    Metric: ``aggregator/old_models``, the number of clients whose selected model is not their
    newest.

    Args:
        memory: K, the number of models that are stored for each client.
        batches: the number of batches. With more batches, fewer combinations are compared.
        smoothness: L, the weight of the models' divergence against their losses.
        warmup: the number of warm-up rounds at the start. In them the newest models are selected,
            and the global model is the average of the cohort, as in FedAvg.
        weighting: a client's weight in the warm-up; see ``Average``.
    """

    unread_if = {
        "weighting": {"warmup": (0,)},
        "batches": {"memory": (1,)},
        "smoothness": {"memory": (1,)},
    }

    def __init__(
        self,
        memory: PositiveInt,
        batches: PositiveInt,
        smoothness: NonNegativeFloat,
        warmup: NonNegativeInt,
        weighting: Weighting,
    ) -> None:
        super().__init__()
        self.memory, self.batches = memory, batches
        self.smoothness, self.warmup, self.weighting = smoothness, warmup, weighting
        self._chosen = self._next = Chosen()  # ``_next`` is of the last merge, until ``commit``
        self._new: TensorStore = {}  # the models of the last merge

    def setup(self, setting: Setting) -> None:
        """Create the store of models. Raises InputError if a batch has too many combinations."""
        self._seed = setting.seed
        self._parameters = setting.model.shared & setting.model.parameters.keys()
        self.store = self._models = setting.server.make_store("aggregator")
        self._check_batches(setting.most_updates, min(self.memory, setting.rounds))
        if self.warmup >= setting.rounds:
            LOGGER.warning(
                "aggregator.warmup=%d: all %d rounds are warm-up, as in FedAvg; use fewer",
                self.warmup,
                setting.rounds,
            )

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The loss F of the client's model: its mean cross-entropy in the last local epoch."""
        return {"loss": client.cross_entropy}

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """Return the mean of the selected models, or in the warm-up the average of the cohort."""
        self._next, self._new = self._chosen.next_round(), {}
        for update in updates:
            self._remember(update)
        cohort = [update.client for update in updates]
        if self._next.round > self.warmup:
            return self._select(cohort, current)
        self._next.selected |= dict.fromkeys(cohort, self._next.round)
        return Average(self.weighting).of(updates, current)

    def commit(self) -> None:
        """Store the cohort's models; delete the models that they replace."""
        for name in self._chosen.names() - self._next.names():
            del self._models[name]
        self._models.update(self._new)
        self._chosen, self._new = self._next, {}

    def metrics(self) -> dict[str, float]:
        """The number of clients whose selected model is not their newest."""
        losses, selected = self._chosen.losses, self._chosen.selected
        old = sum(round != max(losses[client]) for client, round in selected.items())
        return {"aggregator/old_models": old}

    def server_state(self) -> dict[str, Any]:
        """The state of the server without the clients' stored models, which are in ``store``."""
        return dict(vars(self._chosen))

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._chosen = Chosen(**state)

    def _check_batches(self, cohort: int, memory: int) -> None:
        size = -(-cohort // self.batches)
        if memory**size <= COMBINATIONS:
            return
        fitting = max((s for s in range(1, size) if memory**s <= COMBINATIONS), default=None)
        advice = "use a smaller aggregator.memory"
        if fitting:
            advice = f"use aggregator.batches={-(-cohort // fitting)} or more"
        raise InputError(
            f"aggregator.batches={self.batches}: {size} clients in a batch with {memory} models "
            f"each have more than {COMBINATIONS} combinations; {advice}"
        )

    def _remember(self, update: PartUpdate) -> None:
        """Add a client's new model. If this client then has more than K, leave out its oldest."""
        client, round = update.client, self._next.round
        losses = self._next.losses.setdefault(client, {})
        losses[round] = update.extras["loss"].item()
        self._new[_name(client, round)] = update.weights
        if len(losses) > self.memory:
            del losses[min(losses)]

    def _select(self, cohort: Sequence[int], current: Tensors) -> Tensors:
        """Select a model of each client in the cohort; return the mean of all selected models."""
        floats = {n: w.to(torch.float64) for n, w in current.items() if w.is_floating_point()}
        totals = Totals(0, 0.0, 0.0, {n: torch.zeros_like(w) for n, w in floats.items()})
        for client in sorted(self._next.selected.keys() - set(cohort)):
            self._add(totals, client, floats)
        order = numpy_generator(self._seed, "cross_round", self._next.round).permutation(cohort)
        for batch in np.array_split(order, min(self.batches, len(order))):
            self._select_batch(batch.tolist(), totals, floats)
            for client in batch.tolist():
                self._add(totals, client, floats)
        mean = {
            name: (floats[name] + total / totals.count).to(current[name].dtype)
            for name, total in totals.steps.items()
        }
        selected = self._next.selected
        newest = max(selected, key=lambda client: (selected[client], -client))
        model = self._model(newest, selected[newest])
        return {n: mean[n] if n in mean else model[n].to(w.device) for n, w in current.items()}

    def _select_batch(self, batch: Sequence[int], totals: Totals, current: Tensors) -> None:
        """Select a model of each client in the batch."""
        stored, selected = self._next.losses, self._next.selected
        candidates = [(c, round) for c in batch for round in sorted(stored[c], reverse=True)]
        models = [self._model(*each) for each in candidates]
        inner = np.zeros((len(models) + 1, len(models) + 1))
        for name in sorted(self._parameters):
            steps = [_step(model, name, current).flatten() for model in models]
            rows = torch.stack([*steps, totals.steps[name].flatten()])
            inner += (rows @ rows.T).cpu().numpy()
        members = [[i for i, (c, _) in enumerate(candidates) if c == client] for client in batch]
        losses = [stored[client][round] for client, round in candidates]
        for chosen in best_combination(inner, losses, members, totals, self.smoothness):
            client, round = candidates[chosen]
            selected[client] = round

    def _add(self, totals: Totals, client: int, current: Tensors) -> None:
        """Add the client's selected model to ``totals``."""
        round = self._next.selected[client]
        model = self._model(client, round)
        totals.count += 1
        totals.loss += self._next.losses[client][round]
        for name, total in totals.steps.items():
            step = _step(model, name, current)
            total += step
            if name in self._parameters:
                totals.square += step.square().sum().item()

    def _model(self, client: int, round: int) -> Tensors:
        name = _name(client, round)
        return self._new[name] if name in self._new else self._models[name]


def _name(client: int, round: int) -> str:
    return f"client_{client}_round_{round}"


def _step(model: Tensors, name: str, current: Tensors) -> Tensor:
    """The step w - w^t of one weight. ``current`` holds the global weights w^t in float64."""
    return model[name].to(current[name]) - current[name]
