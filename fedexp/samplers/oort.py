"""Oort (Lai et al., OSDI 2021): cohorts of clients with a large loss and a fast device."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE, SIMULATED_TIME
from fedexp.config.schema import Share
from fedexp.contract import Client, Forward, Memory, PartUpdate, Setting, Tensors
from fedexp.rounding import rounded_down
from fedexp.samplers.base import Sampler

_LEAST = 1e-9
"""Smallest odds of a client, so that a draw without replacement always finds enough clients."""


def statistical_scores(
    utilities: np.ndarray, last_rounds: np.ndarray, round: int, clip: float
) -> np.ndarray:
    """Compute the part of the clients' scores that does not depend on their devices, [n].

    A utility above the quantile ``clip`` of all utilities is replaced by this quantile. Then the
    clipped utilities are scaled to the range from 0 to 1. The released code divides by the range of
    the utilities before clipping, so that one outlier makes all other values small. Finally the
    bonus sqrt(0.1 ln R / L) is added, where R is the current round and L is the round in which the
    client trained last. The bonus is large for a client that was not chosen for a long time.

    Args:
        utilities: [n] statistical utilities of n clients that have trained; see ``Oort``.
        last_rounds: L [n], at least 1.
        round: R, larger than each L.
        clip: the quantile at which utilities are clipped, from 0 to 1. With 1 nothing is clipped.
    """
    clipped = np.minimum(utilities, np.quantile(utilities, clip))
    spread = clipped.max() - clipped.min()
    scaled = (clipped - clipped.min()) / spread if spread > 0 else np.ones_like(clipped)
    bonus: np.ndarray = scaled + np.sqrt(0.1 * math.log(round) / last_rounds)
    return bonus


def slow_penalty(seconds: np.ndarray, preferred: float, alpha: float) -> np.ndarray:
    """The factors [n] of slow clients' scores: (T / t)^alpha if t > T, else 1.

    Args:
        seconds: t [n], the seconds of each client's turn.
        preferred: T, the preferred seconds of a turn.
        alpha: strength of the penalty.
    """
    penalty: np.ndarray = (preferred / np.maximum(seconds, preferred)) ** alpha
    return penalty


def draw_above_cut(
    scores: np.ndarray, count: int, cut: float, generator: np.random.Generator
) -> np.ndarray:
    """Draw ``count`` of n clients with odds proportional to their ``scores`` [n].

    Let s be the score at place ``count`` when the scores are sorted, largest first. Only clients
    with a score of at least ``cut`` times s can be drawn. Returns the positions [count] of the
    drawn clients in ``scores``.
    """
    if not count:
        return np.empty(0, dtype=np.int64)
    least = cut * np.sort(scores)[-count]
    admitted = np.flatnonzero(scores >= least)
    odds = np.maximum(scores[admitted], _LEAST)
    drawn: np.ndarray = generator.choice(admitted, count, replace=False, p=odds / odds.sum())
    return drawn


class Oort(Sampler):
    """Prefers clients with high scores; a share epsilon of the cohort has not trained yet.

    The statistical utility of client k is $n_k sqrt(mean of loss^2)$. n_k is its number of samples,
    and the mean is over all samples of all steps of its last turn. The client sends this one
    number. A client's score is the scaled utility plus a bonus (``statistical_scores``). If the
    client's last turn took longer than T, the score is multiplied by a penalty (``slow_penalty``).
    T is a quantile of the seconds that the clients with data take for a turn. After every
    ``window`` rounds the utilities of these rounds are summed. If the sum is smaller than the sum
    over the ``window`` rounds before, the quantile is raised. This rule is called the pacer.
    Clients without a utility are drawn with odds proportional to $1 / t$, where t is the expected
    time of a turn.

    A client that was left out of the round gets the mean utility of the round's clients: it missed
    the deadline, enough other clients were faster, or its update was refused. Its round and its
    seconds are stored, too, as in the released code. Without this rule a client that is always too
    slow would take a place among the new clients for ever. A client that dropped out stays as it
    was. In a round whose updates the server does not merge, the clients keep their utilities; a
    client without one gets 0.

    The paper's text was not at hand. Implementations by other authors cite its Alg. 1 for the
    utility, the bonus, the penalty, the pacer, the cut and the draw by speed; this class agrees
    with them. Two rules follow the released code: utilities are scaled, and T is a quantile and not
    a number of seconds. The released code has the same bonus and penalty. It differs in these
    rules:

    * Its cut is relative to the score at place ``count`` + 1.
    * Its pacer compares mean utilities of the clients that were drawn by scores. It raises the
      quantile if the sums of these means over two windows differ by at most a tenth of the earlier
      sum. It lowers the quantile if they differ by at least five times the earlier sum.
    * It draws new clients with odds proportional to their numbers of samples, times the penalty.
      It draws them from the clients with the largest odds, five times as many as it needs.
    * Its n_k is at most the number of samples that a turn computes. In place of the mean over all
      steps it has a moving average over the batches of the first epoch.
    * It multiplies epsilon by its factor before the first round, too.
    * It counts a client that was left out as a client that trained, in the pacer's mean utilities
      and in the limit of ``most_rounds``.

    Args:
        exploration: epsilon in the first round.
        exploration_decay: epsilon is multiplied by this factor after each round.
        exploration_min: smallest epsilon.
        alpha: strength of the penalty of slow clients.
        preferred: the quantile of the clients' seconds that is T at first. With 1 there is no
            penalty.
        pacer_step: how much the pacer raises this quantile.
        window: number of rounds whose sums of utilities the pacer compares.
        cut: limits the draw by scores to clients with high scores, see ``draw_above_cut``.
        clip: the quantile at which utilities are clipped.
        most_rounds: a client that trained this often is left out, as long as enough others remain.
            None means no limit. The released code leaves out clients that trained more often than
            its limit, and at most 30 % of all clients.
    """

    unread_if = {
        "alpha": {"preferred": (1,)},
        "preferred": {"alpha": (0,)},
        "pacer_step": {"alpha": (0,), "preferred": (1,)},
        "window": {"alpha": (0,), "preferred": (1,)},
    }

    takes_tokens = True
    traits = frozenset({DRAWS_BY_SIZE})
    needs = {
        SIMULATED_TIME: "sampler=oort: needs the seconds of simulated devices; choose them, for "
        "example system=phones"
    }

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
        """Set each client's seconds to its expected time of a turn; no client has a utility yet."""
        super().setup(setting)
        everyone = np.arange(setting.num_clients)
        expected = setting.clients.turn_seconds  # None in an exported model, which never selects
        self.seconds = expected(everyone) if expected else np.ones(setting.num_clients)
        self.utilities = np.full(setting.num_clients, np.nan)
        self.last_rounds = np.zeros(setting.num_clients, dtype=np.int64)
        self.sums: list[float] = []
        self.rounds_seen = 0
        self.quantile = self.preferred
        self._round = 0
        self._heard: list[int] = []

    # The server's half.

    def select(self, round: int) -> list[int]:
        """Draw a part of the cohort by scores, and the rest among clients that have not trained.

        The draws depend on the seed and the round.
        """
        self._round = round
        generator = self.generator("sampler", round)
        known = ~np.isnan(self.utilities[self.eligible])
        new, trained = self.eligible[~known], self.eligible[known]
        wanted = rounded_down(1 - self.epsilon(round), self.cohort_size)
        least = max(0, self.cohort_size - len(new))
        exploited = min(max(wanted, least), len(trained))
        explored = min(self.cohort_size - exploited, len(new))
        trained = self._within_limit(trained, exploited)
        scores = self.scores(trained, round)
        chosen = trained[draw_above_cut(scores, exploited, self.cut, generator)].tolist()
        if explored:
            odds = 1 / np.maximum(self.seconds[new], _LEAST)
            chosen += generator.choice(new, explored, replace=False, p=odds / odds.sum()).tolist()
        return sorted(chosen)

    def epsilon(self, round: int) -> float:
        """Epsilon: the share of this round's cohort that has not trained yet."""
        decayed = self.exploration * self.exploration_decay ** (round - 1)
        return max(self.exploration_min, decayed)

    def preferred_seconds(self) -> float:
        """T: a quantile of the seconds of all clients with data; infinite if the quantile is 1."""
        if self.quantile >= 1:
            return math.inf
        return float(np.quantile(self.seconds[self.with_data], self.quantile))

    def scores(self, clients: np.ndarray, round: int) -> np.ndarray:
        """The scores [n] by which n ``clients`` are drawn; all of them must have trained."""
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
        """Store the seconds that each client of the cohort took, or would have taken.

        Clients without a utility get 0 until ``aggregate``, which some rounds never call.
        """
        self._heard = list(seconds)
        self.seconds[self._heard] = list(seconds.values())
        self.utilities[self._heard] = np.nan_to_num(self.utilities[self._heard])
        self.last_rounds[self._heard] = self._round

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's utilities, and let the pacer raise the preferred seconds T.

        Clients that were left out get the mean utility. T rises if the sum of the cohort's
        utilities over the last ``window`` rounds is smaller than over the ``window`` rounds before.
        """
        super().aggregate(updates)
        found = {each.client: each.extras["utility"].item() for each in updates}
        finite = {client: value for client, value in found.items() if math.isfinite(value)}
        total = sum(finite.values())
        mean = total / len(finite) if finite else 0.0
        for client in {*self._heard, *finite}:
            self.utilities[client] = finite.get(client, mean)
            self.last_rounds[client] = self._round
        self.sums = [*self.sums, total][-2 * self.window :]
        self.rounds_seen += 1
        compares = self.rounds_seen % self.window == 0 and len(self.sums) == 2 * self.window
        if compares and sum(self.sums[: self.window]) > sum(self.sums[self.window :]):
            self.quantile = min(1.0, self.quantile + self.pacer_step)

    def metrics(self) -> dict[str, float]:
        """The share epsilon of new clients; also the preferred seconds T, if T is finite."""
        preferred = self.preferred_seconds()
        found = {"sampler/exploration": self.epsilon(self._round)}
        return found if preferred == math.inf else found | {"sampler/preferred_s": preferred}

    def server_state(self) -> dict[str, Any]:
        """What a checkpoint stores: the state of ``Sampler``, of the clients and of the pacer.

        A client's state is its utility, the seconds of its turn, and the round of both.
        """
        return super().server_state() | {
            "seconds": torch.from_numpy(self.seconds.copy()),
            "utilities": torch.from_numpy(self.utilities.copy()),
            "last_rounds": torch.from_numpy(self.last_rounds.copy()),
            "pacer": {"sums": self.sums, "seen": self.rounds_seen, "quantile": self.quantile},
        }

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Restore what ``server_state`` returned."""
        super().load_server_state(state)
        for name in ("seconds", "utilities", "last_rounds"):
            setattr(self, name, state[name].numpy().copy())
        pacer = state["pacer"]
        self.sums, self.rounds_seen = list(pacer["sums"]), pacer["seen"]
        self.quantile = pacer["quantile"]

    # The client's half.

    def measure(self, batch: Forward) -> Tensors:
        """The sum of the squared losses of a batch's samples, and the number of these samples."""
        losses = F.cross_entropy(batch.logits.float(), batch.targets, reduction="none")
        real = torch.ones_like(losses) if batch.real is None else batch.real
        squares = torch.where(real > 0, losses.square(), 0.0)
        return {"squares": squares.sum(), "samples": real.sum()}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Send ``utility``, a float32: number of samples times root mean square of the losses."""
        found = client.measured(self)
        mean = found["squares"] / found["samples"]
        return {"utility": client.num_samples * mean.sqrt()}

    def _within_limit(self, clients: np.ndarray, needed: int) -> np.ndarray:
        """The clients that trained less than ``most_rounds`` times; all if these are too few."""
        if self.most_rounds is None:
            return clients
        left = clients[self.times_chosen.numpy()[clients] < self.most_rounds]
        return left if len(left) >= needed else clients
