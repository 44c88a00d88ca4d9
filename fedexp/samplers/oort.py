"""Oort (Lai et al., OSDI 2021): cohorts of clients with a large loss and a fast device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedexp.compatibility.traits import DRAWS_BY_SIZE, SIMULATED_TIME
from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.samplers.base import Sampler

Share = Annotated[float, Field(ge=0, le=1)]

_LEAST = 1e-9
"""Smallest odds of a client, so that a draw without replacement always finds enough clients."""


def statistical_scores(
    utilities: np.ndarray, last_rounds: np.ndarray, round: int, clip: float
) -> np.ndarray:
    """The part of the scores that does not depend on devices, [n].

    Utilities above the quantile ``clip`` count as this quantile. They are then scaled to 0 ... 1,
    as in the released code. The bonus sqrt(0.1 ln R / L) is added: L is the round in which the
    client trained last, R the current round. So a client that was not chosen for long becomes
    likely again.

    Args:
        utilities: U [n], of clients that have trained.
        last_rounds: L [n], from 1.
        round: R, above L.
        clip: 0 to 1; 1: no clipping.
    """
    clipped = np.minimum(utilities, np.quantile(utilities, clip))
    spread = clipped.max() - clipped.min()
    scaled = (clipped - clipped.min()) / spread if spread > 0 else np.ones_like(clipped)
    bonus: np.ndarray = scaled + np.sqrt(0.1 * math.log(round) / last_rounds)
    return bonus


def slow_penalty(seconds: np.ndarray, preferred: float, alpha: float) -> np.ndarray:
    """(T / t)^alpha for clients with t above T, else 1, [n].

    Args:
        seconds: t [n], the seconds of the clients' turns.
        preferred: T, the preferred length of a round.
        alpha: strength of the penalty.
    """
    penalty: np.ndarray = (preferred / np.maximum(seconds, preferred)) ** alpha
    return penalty


def draw_above_cut(
    scores: np.ndarray, count: int, cut: float, generator: np.random.Generator
) -> np.ndarray:
    """Draw ``count`` of n clients with odds proportional to their ``scores`` [n].

    Only clients take part whose score is at least ``cut`` times the score of the client in place
    ``count``, the largest score first. Returns positions [count].
    """
    if not count:
        return np.empty(0, dtype=np.int64)
    least = cut * np.sort(scores)[-count]
    admitted = np.flatnonzero(scores >= least)
    odds = np.maximum(scores[admitted], _LEAST)
    drawn: np.ndarray = generator.choice(admitted, count, replace=False, p=odds / odds.sum())
    return drawn


class Oort(Sampler):
    """A share epsilon of the cohort has not trained yet; the others are drawn by their scores.

    The statistical utility of client k is n_k sqrt(mean of loss^2), over all samples of all steps
    of its last turn; the client sends it, one number. A client's score is the scaled utility plus a
    bonus (``statistical_scores``), times a penalty if its last turn took longer than T
    (``slow_penalty``). Clients that have not trained are drawn with odds proportional to 1 / t, by
    the expected seconds t of a turn. T is a quantile of the seconds of all clients with data. The
    pacer raises this quantile after every ``window`` rounds whose utilities have a smaller sum than
    the ``window`` rounds before.

    The algorithm is the paper's Alg. 1, written from memory and not compared with the paper. The
    scaled utilities, the bonus and the quantile in place of seconds follow the released code.

    Args:
        exploration: epsilon in the first round.
        exploration_decay: factor of epsilon from round to round.
        exploration_min: smallest epsilon.
        alpha: strength of the penalty of slow clients.
        preferred: the quantile of the clients' seconds that is T at first; 1: no penalty.
        pacer_step: added to this quantile.
        window: W, rounds that the pacer compares.
        cut: the clients that are drawn by scores have at least this share of the cut-off score.
        clip: the quantile at which utilities are clipped.
        most_rounds: a client that trained this often is left out, as long as enough others remain;
            None: no limit.
    """

    takes_tokens = True
    traits = frozenset({DRAWS_BY_SIZE})
    needs = MappingProxyType(
        {
            SIMULATED_TIME: "sampler=oort: needs the seconds of simulated devices; choose them, "
            "for example system=phones"
        }
    )

    def __init__(
        self,
        exploration: Share,
        exploration_decay: Share,
        exploration_min: Share,
        alpha: NonNegativeFloat,
        preferred: Share,
        pacer_step: NonNegativeFloat,
        window: PositiveInt,
        cut: Share,
        clip: Annotated[PositiveFloat, Field(le=1)],
        most_rounds: PositiveInt | None,
    ) -> None:
        self.exploration, self.exploration_decay = exploration, exploration_decay
        self.exploration_min, self.alpha = exploration_min, alpha
        self.preferred, self.pacer_step, self.window = preferred, pacer_step, window
        self.cut, self.clip, self.most_rounds = cut, clip, most_rounds

    def setup(self, setting: Setting) -> None:
        """Start from the expected seconds of every client, without any utility."""
        super().setup(setting)
        everyone = np.arange(setting.num_clients)
        expected = setting.turn_seconds  # None in an exported model, which never selects
        self.seconds = expected(everyone) if expected else np.ones(setting.num_clients)
        self.utilities = np.full(setting.num_clients, np.nan)
        self.last_rounds = np.zeros(setting.num_clients, dtype=np.int64)
        self.sums: list[float] = []
        self.rounds_seen = 0
        self.quantile = self.preferred
        self._round = 0

    # The server's half.

    def select(self, round: int) -> list[int]:
        """Draw clients that have not trained, and others by their scores.

        The draws depend on the seed and the round.
        """
        self._round = round
        generator = self.generator("sampler", round)
        known = ~np.isnan(self.utilities[self.eligible])
        new, trained = self.eligible[~known], self._within_limit(self.eligible[known])
        wanted = math.floor((1 - self.epsilon(round)) * self.cohort_size + 0.5)
        least = max(0, self.cohort_size - len(new))
        exploited = min(max(wanted, least), len(trained))
        explored = min(self.cohort_size - exploited, len(new))
        scores = self.scores(trained, round)
        chosen = trained[draw_above_cut(scores, exploited, self.cut, generator)].tolist()
        if explored:
            odds = 1 / np.maximum(self.seconds[new], _LEAST)
            chosen += generator.choice(new, explored, replace=False, p=odds / odds.sum()).tolist()
        return sorted(chosen)

    def epsilon(self, round: int) -> float:
        """The share of clients in this round's cohort that have not trained yet."""
        decayed = self.exploration * self.exploration_decay ** (round - 1)
        return max(self.exploration_min, decayed)

    def preferred_seconds(self) -> float:
        """T, the preferred length of a round."""
        if self.quantile >= 1:
            return math.inf
        return float(np.quantile(self.seconds[self.with_data], self.quantile))

    def scores(self, clients: np.ndarray, round: int) -> np.ndarray:
        """The scores [n] of ``clients`` [n], which have trained."""
        if not len(clients):
            return np.empty(0)
        utilities, last = self.utilities[clients], self.last_rounds[clients]
        statistical = statistical_scores(utilities, last, round, self.clip)
        preferred = self.preferred_seconds()
        if preferred == math.inf:
            return statistical
        scores: np.ndarray = statistical * slow_penalty(
            self.seconds[clients], preferred, self.alpha
        )
        return scores

    def observe_seconds(self, seconds: Mapping[int, float]) -> None:
        """Store the seconds of the cohort's turns."""
        for client, value in seconds.items():
            self.seconds[client] = value

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's utilities, and let the pacer compare the last rounds."""
        super().aggregate(updates)
        found = {each.client: each.extras["utility"].item() for each in updates}
        finite = {client: value for client, value in found.items() if math.isfinite(value)}
        for client, value in finite.items():
            self.utilities[client], self.last_rounds[client] = value, self._round
        self.sums = [*self.sums, sum(finite.values())][-2 * self.window :]
        self.rounds_seen += 1
        compares = self.rounds_seen % self.window == 0 and len(self.sums) == 2 * self.window
        if compares and sum(self.sums[: self.window]) > sum(self.sums[self.window :]):
            self.quantile = min(1.0, self.quantile + self.pacer_step)

    def metrics(self) -> dict[str, float]:
        """T, if there is one, and epsilon."""
        preferred = self.preferred_seconds()
        found = {"sampler/exploration": self.epsilon(self._round)}
        return found if preferred == math.inf else found | {"sampler/preferred_s": preferred}

    def server_state(self) -> dict[str, Any]:
        """Also the clients' seconds, utilities and last rounds, and the pacer."""
        return super().server_state() | {
            "seconds": torch.from_numpy(self.seconds.copy()),
            "utilities": torch.from_numpy(self.utilities.copy()),
            "last_rounds": torch.from_numpy(self.last_rounds.copy()),
            "pacer": {"sums": self.sums, "seen": self.rounds_seen, "quantile": self.quantile},
        }

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        for name in ("seconds", "utilities", "last_rounds"):
            setattr(self, name, state[name].numpy().copy())
        pacer = state["pacer"]
        self.sums, self.rounds_seen = list(pacer["sums"]), pacer["seen"]
        self.quantile = pacer["quantile"]

    # The client's half.

    def measure(self, batch: Forward) -> Tensors:
        """Sum of the squared losses of a batch's samples, and their number."""
        losses = F.cross_entropy(batch.logits.float(), batch.targets, reduction="none")
        real = torch.ones_like(losses) if batch.real is None else batch.real
        squares = torch.where(real > 0, losses.square(), 0.0)
        return {"squares": squares.sum(), "samples": real.sum()}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """``utility``, a float32 scalar."""
        found = client.measured(self)
        mean = found["squares"] / found["samples"]
        return {"utility": client.data.num_samples * mean.sqrt()}

    def _within_limit(self, clients: np.ndarray) -> np.ndarray:
        """The clients that trained less than ``most_rounds`` times; all, if too few remain."""
        if self.most_rounds is None:
            return clients
        left = clients[self.times_chosen.numpy()[clients] < self.most_rounds]
        return left if len(left) >= self.cohort_size else clients
