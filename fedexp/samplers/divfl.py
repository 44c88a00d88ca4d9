"""DivFL (Balakrishnan et al., ICLR 2022): a cohort whose gradients stand for everybody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial.distance import cdist
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Tensors, Update
from fedexp.samplers.last_updates import LastUpdates


def facility_location(distances: Tensor, k: int) -> list[int]:
    """Greedily, k of N points with a small sum over all points of the distance to the nearest one.

    Each step adds the point that lowers sum_i min_{j in S} d_ij most; of several whose sums agree
    to nine digits, the one with the lowest number. What is saved against a point at the largest
    distance from all is at least 1 - 1/e of the most that k points can save (Nemhauser et al.,
    1978).

    Args:
        distances: [N, N], of row i from column j.
        k: at most N.

    Returns:
        k numbers below N, in the order chosen.
    """
    matrix = distances.cpu().numpy()
    nearest = np.full(len(matrix), np.inf)
    chosen: list[int] = []
    for _ in range(k):
        costs = np.minimum(nearest[:, None], matrix).sum(axis=0)
        costs[chosen] = np.inf
        # Two points that only stand for each other cost the same: rounding shall not decide.
        chosen.append(int((costs <= costs.min() * (1 + 1e-9)).argmax()))
        nearest = np.minimum(nearest, matrix[:, chosen[-1]])
    return chosen


class DivFL(LastUpdates):
    """The K clients whose gradients lie nearest to all clients' gradients, by Euclidean distance.

    Plain greedy, as the released code runs it: its stochastic greedy, which looks at a random
    subset in each step, is off there. The paper's bound weighs a chosen client by how many it
    stands for; the released code averages by samples, as ``aggregator=sample_weighted`` does.

    Args:
        signal: what is compared. ``ideal``: the gradients of the mean cross-entropy on all of a
            client's training data at the global model, in eval mode, over the shared parameters;
            every client with data is asked each round and uploads it. ``last_update``: what the
            server knows of each client's last update, zero at first. It costs nothing, but all that
            have not trained yet are alike, so that one of them stands for the others: after the
            first round there is, as a rule, one newcomer in each cohort. Memory: see
            ``LastUpdates``; with ``ideal`` it is needed for the time of the choice.
    """

    def __init__(self, signal: Literal["ideal", "last_update"]) -> None:
        self.signal = signal

    def between(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Euclidean distances."""
        # Not torch.cdist, which takes matrix products: equal updates would not be at distance 0.
        return torch.from_numpy(cdist(rows.numpy(), columns.numpy()))

    def candidates(self, round: int) -> list[int]:
        """With ``ideal``: everybody who has data."""
        return self.eligible.tolist() if self.signal == "ideal" else []

    def answer(self, client: Client) -> Tensors:
        """``gradient`` [D] float32."""
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
        """With ``ideal``: compare the gradients; they are not needed any longer."""
        if answers:
            self.take({client: answer["gradient"] for client, answer in answers.items()})
            self.updates = {}

    def select(self, round: int) -> list[int]:
        """The K facilities."""
        chosen = facility_location(self.distances, self.cohort_size)
        return sorted(self.eligible[chosen].tolist())

    def extract(self, update: Update, current: Tensors) -> Tensors:
        """With ``last_update``: the update."""
        return super().extract(update, current) if self.signal == "last_update" else {}
