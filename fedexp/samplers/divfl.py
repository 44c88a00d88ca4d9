"""DivFL (Balakrishnan et al., ICLR 2022): a cohort whose gradients represent all clients'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial.distance import cdist
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Tensors
from fedexp.core.randomness import numpy_generator
from fedexp.samplers.last_updates import LastUpdates


def facility_location(
    distances: Tensor, k: int, generator: np.random.Generator | None = None
) -> list[int]:
    """Choose k of N points greedily: each point should be near one of the chosen points.

    The cost of a set S is sum_i min_{j in S} d_ij. Each step adds the point that lowers the cost
    most; if costs agree to nine digits, the lowest number wins. Compared with one point at the
    largest distance from all points, greedy reduces the cost by at least 1 - 1/e of the largest
    reduction that k points can give (Nemhauser et al., 1978).

    Args:
        distances: [N, N], of row i from column j.
        k: at most N.
        generator: if given, greedy is stochastic: each step considers max(k, N // 10) points, drawn
            without replacement from the points not yet chosen; if fewer are left, all of them.

    Returns:
        k numbers below N, in the order chosen.
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
        # Two points that represent only each other have equal costs: rounding must not decide.
        chosen.append(int((costs <= costs.min() * (1 + 1e-9)).argmax()))
        nearest = np.minimum(nearest, matrix[:, chosen[-1]])
    return chosen


class DivFL(LastUpdates):
    """The K clients whose gradients lie nearest to all clients' gradients, by Euclidean distance.

    The paper's bound weighs a chosen client by how many it represents; DivFL's released code
    averages by samples, as ``aggregator=sample_weighted`` does.

    Args:
        signal: what is compared. ``ideal``: the gradients of the mean cross-entropy on all of a
            client's training data at the global model, in eval mode, over the shared parameters;
            every client with data computes it each round and uploads it. ``last_update``: the last
            update of each client that the server has, zero at first. It costs nothing, but all
            clients that have not trained yet are equal, so that one of them represents the others:
            after the first round there is, as a rule, one such client in each cohort. Memory: see
            ``LastUpdates``; with ``ideal`` it is needed for the time of the choice.
        greedy: ``plain``: each step considers all clients, as in DivFL's released code.
            ``stochastic``: max(K, N // 10) random ones, N the number of clients with data, as in
            the copy of DivFL in HiCS-FL's released code.
    """

    def __init__(
        self, signal: Literal["ideal", "last_update"], greedy: Literal["plain", "stochastic"]
    ) -> None:
        self.signal, self.greedy = signal, greedy

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Euclidean distances."""
        # torch.cdist uses matrix products, with which equal updates would not have distance 0.
        return torch.from_numpy(cdist(rows.numpy(), columns.numpy()))

    def candidates(self, round: int) -> list[int]:
        """With ``ideal``: all clients with data."""
        return self.eligible.tolist() if self.signal == "ideal" else []

    def answer(self, client: Client) -> Tensors:
        """``gradient`` [D] float32 of the mean cross-entropy on the client's training data."""
        weights = client.weights
        parameters = {name: weights[name].requires_grad_() for name in self.names}
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for inputs, targets in client.data.batches(1000):
            logits = client.logits_with(parameters, inputs)
            loss = F.cross_entropy(logits, targets, reduction="sum") / client.data.num_samples
            found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
            for name, gradient in zip(parameters, found, strict=True):
                total[name] += gradient
        return {"gradient": self.flatten(total)}

    def observe(self, answers: Mapping[int, Tensors]) -> None:
        """With ``ideal``: compute the distances of the gradients, and drop the gradients."""
        if answers:
            self.replace({client: answer["gradient"] for client, answer in answers.items()})
            self.updates = {}

    def select(self, round: int) -> list[int]:
        """The K facilities; stochastic greedy draws from a generator keyed by the round."""
        stochastic = self.greedy == "stochastic"
        generator = numpy_generator(self.seed, "sampler", round) if stochastic else None
        chosen = facility_location(self.distances, self.cohort_size, generator)
        return sorted(self.eligible[chosen].tolist())

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """With ``last_update``: the update."""
        return super().extract(weights, current) if self.signal == "last_update" else {}
