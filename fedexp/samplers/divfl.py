"""DivFL (Balakrishnan et al., ICLR 2022): a cohort whose gradients represent all gradients."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial.distance import cdist
from torch import Tensor

from fedexp.config.compatibility.traits import MOVES_START
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Tensors
from fedexp.core.token_rows import scored_rows
from fedexp.samplers.base import COMPARES_STEPS
from fedexp.samplers.last_updates import LastUpdates

_DISCOURAGED = {
    "last_update": COMPARES_STEPS,
    # Clients compute their steps from the weights that they received.
    "all_updates": {MOVES_START: COMPARES_STEPS[MOVES_START]},
}
"""signal -> ``discourages``."""


def facility_location(
    distances: Tensor, k: int, generator: np.random.Generator | None = None
) -> list[int]:
    """Choose k of N points greedily: each point should be near one of the chosen points.

    The cost of a set S of points is sum_i min_{j in S} d_ij. Each step adds the point that lowers
    the cost most. If the costs of several points agree to nine digits, the point with the lowest
    number is added. Let c be N times the largest distance, and let the gain of a set be c minus its
    cost. If each step considers all points, the gain of the chosen points is at least 1 - 1/e times
    the largest gain of any k points (Nemhauser et al., 1978).

    Args:
        distances: [N, N], d_ij from point i to point j.
        k: the number of points to choose, at most N.
        generator: draws the points that a step considers. These are max(k, N // 10) of the points
            that are not chosen yet, or all such points if there are fewer. If the generator is
            None, each step considers all points.

    Returns:
        The indices of the k chosen points, in the order of the choice.
    """
    matrix = distances.cpu().numpy()
    nearest = np.full(len(matrix), np.inf)
    considered: np.ndarray | slice = slice(None)
    chosen: list[int] = []
    for _ in range(k):
        if generator is not None:
            left = np.setdiff1d(np.arange(len(matrix)), chosen)
            drawn = generator.choice(left, min(max(k, len(matrix) // 10), len(left)), replace=False)
            considered = np.sort(drawn)
        costs = np.full(len(matrix), np.inf)
        costs[considered] = np.minimum(nearest[:, None], matrix[:, considered]).sum(axis=0)
        costs[chosen] = np.inf
        # Two points that represent only each other have equal costs. Rounding must not decide
        # between the two.
        chosen.append(int((costs <= costs.min() * (1 + 1e-9)).argmax()))
        nearest = np.minimum(nearest, matrix[:, chosen[-1]])
    return chosen


class DivFL(LastUpdates):
    """Chooses K clients so that every client's gradient is near the gradient of a chosen client.

    Nearness is measured by Euclidean distance. In the paper's bound the weight of a chosen client
    is the number of clients that it represents. DivFL's released code averages by samples
    (``aggregator=sample_weighted``). The copy of DivFL in HiCS-FL's released code averages
    uniformly (``aggregator=uniform``).

    A gradient is the gradient of a client's mean cross-entropy on all its training data, in eval
    mode, with respect to the shared parameters. It is taken at the received model, before any part
    adapts the head to the client or moves the weights. For sequences the cross-entropy is summed
    over the tokens of a sequence. ``LastUpdates`` says how much memory the stored vectors take.
    With ``ideal`` and ``all_updates`` the vectors are deleted after they are compared.

    Args:
        signal: the vectors by which clients are compared.
            With ``ideal`` a client's vector is its gradient at the global model. In each round
            every available client computes and uploads its gradient.
            With ``gradient`` (DivFL's released code) a client's vector is its gradient at the model
            that the client received last. In the first round every available client uploads its
            gradient; an absent client does so in the first round in which it is available. Later
            each client of the cohort computes its gradient before its training, and uploads it with
            its weights.
            With ``last_update`` a client's vector is its last update, initially zero. This costs no
            traffic. Clients that have not trained yet have equal vectors, so one of these clients
            represents all of them. After the first round a cohort therefore usually has one such
            client.
            With ``all_updates`` (HiCS-FL's copy) every available client trains and sends its update
            in each round. The next round's cohort is chosen by these updates; the vector of a
            client that was absent is zero. Only the cohort's training changes the global model.
        greedy: with ``plain`` (DivFL's released code) each step considers all clients. With
            ``stochastic`` (HiCS-FL's copy) each step considers max(K, N // 10) random clients,
            where N is the number of clients that can be chosen.
    """

    def __init__(
        self,
        signal: Literal["ideal", "gradient", "last_update", "all_updates"],
        greedy: Literal["plain", "stochastic"],
    ) -> None:
        self.signal, self.greedy = signal, greedy
        self.trains_candidates = signal == "all_updates"
        self.discourages = _DISCOURAGED.get(signal, {})
        self._answers: dict[int, Tensor] = {}

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The Euclidean distances [n, m] between n vectors ``rows`` and m vectors ``columns``."""
        # torch.cdist uses matrix products: the distance of equal updates would not be exactly 0.
        return torch.from_numpy(cdist(rows.numpy(), columns.numpy()))

    def candidates(self, round: int) -> list[int]:
        """The clients to probe before the choice, among those that can be chosen.

        With the signals ``ideal`` and ``all_updates`` all of them are probed, with the signal
        ``gradient`` those without a stored gradient, and with ``last_update`` none.
        """
        if self.signal == "last_update":
            return []
        stored = self.updates if self.signal == "gradient" else {}
        return [client for client in self.eligible.tolist() if client not in stored]

    def answer(self, client: Client) -> Tensors:
        """Compute ``update``, the vector [D] float32 by which clients are compared.

        With ``all_updates`` it is the change of the D shared parameters in the client's training.
        Otherwise it is the client's gradient.
        """
        if self.signal != "all_updates":
            return {"update": self._gradient(client, client.weights)}
        weights, received = client.weights, self._received.weights
        return {"update": self.flatten({n: weights[n] - received[n] for n in self.names})}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """If the signal is ``gradient``, compute the gradient at the received model."""
        self._received = message
        if self.signal == "gradient":
            memory["gradient"] = self._gradient(client, message.weights)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Send the gradient, if the signal is ``gradient``."""
        return {"update": memory.pop("gradient")} if self.signal == "gradient" else {}

    def _gradient(self, client: Client, weights: Tensors) -> Tensor:
        """The gradient [D] of the mean cross-entropy on the client's training data, float32.

        ``weights`` has the shared parameters that the client received.
        """
        model = client.global_model()
        parameters = {name: weights[name].detach().requires_grad_() for name in self.names}
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for inputs, targets in client.data.batches(1000):
            targets, logits = scored_rows(targets, model(parameters, inputs))
            loss = F.cross_entropy(logits, targets, reduction="sum") / client.data.num_samples
            found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
            for name, gradient in zip(parameters, found, strict=True):
                total[name] += gradient
        return self.flatten(total)

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """Store the probed clients' answers, and compute the distances between them.

        With ``all_updates`` the distances are computed at the end of the round.
        """
        self._answers = {client: answer["update"] for client, answer in answers.items()}
        if self.signal != "all_updates":
            self._compare_answers()

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the vectors that arrived in this round, and compute their distances."""
        super().aggregate(updates)
        self._compare_answers()

    def _compare_answers(self) -> None:
        """Compute the distances between the answers; delete vectors that no later round needs."""
        if not self._answers:
            return
        if self.signal != "gradient":
            self.distances.zero_()  # clients that were absent have equal vectors
        self.replace(self._answers)
        self._answers = {}
        if self.signal != "gradient":
            self.updates = {}

    def select(self, round: int) -> list[int]:
        """Choose the cohort from the available clients by ``facility_location``.

        Random draws depend on the seed and the round.
        """
        stochastic = self.greedy == "stochastic"
        generator = self.generator("sampler", round) if stochastic else None
        chosen = facility_location(self.distances_now, self.cohort_size, generator)
        return sorted(self.eligible[chosen].tolist())

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Server: the client's update as one vector [D], if the signal is ``last_update``."""
        return super().extract(weights, current) if self.signal == "last_update" else {}
