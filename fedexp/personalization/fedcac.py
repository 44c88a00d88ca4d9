"""FedCAC: critical parameters are averaged over similar clients, the others over all."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import NOT_THE_MEAN, OTHER_WEIGHTS
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.personalization.client_models import StoresModels, weighted_mean
from fedexp.rounding import rounded_down

_ROUNDING = 1e-12
"""Two overlaps that differ by less are equal."""


class FedCAC(StoresModels):
    """Averages each client's critical parameters over similar clients only (Wu et al., ICCV 2023).

    After its training a client marks in each tensor the share tau of elements with the largest
    sensitivity $|(w_i - w) w_i|$ as critical (``critical``), and sends its model w_i and the marks
    M_i. w is the model with which its training started. The overlap of two clients i and j is
    $O_ij = 1 - sum |M_i - M_j| / (2 sum M_i)$. Clients whose overlap reaches the threshold

        $mean O + (t / beta) (max O - mean O)$

    are similar (``similar``); t counts the server's steps from 1, and O has no pairs of a client
    with itself. The next model of client i has at its critical elements the unweighted mean of the
    models of i and the clients similar to i. It has the global model at all other elements. In
    later rounds fewer clients are similar, and after beta rounds often none.

    In the paper all clients train in all rounds. Here the server compares the clients of a cohort.
    A client that is drawn again later gets the last mean for its critical elements, and the present
    global model for the others. Until its second round it gets the global model.

    A released version by one of the authors, in Fling, takes all non-zero elements as critical if
    the sensitivity of the marked ones is nearly 0; here zero elements are never critical. The
    client's model is assembled at the server, which saves the second download. Buffers come from
    the global model. No global model is evaluated. The server stores a model and marks of each
    client; those that exceed ``clients.ram_gib`` are on disk. A mark is counted as one byte.

    Metric: ``personalization/similar_clients``, the mean number of clients that are similar to one.

    Args:
        tau: the share of critical elements in each tensor; their number is rounded down.
        beta: the round in which only clients with the largest overlap are similar; later none is.
    """

    unread_if = {"beta": {"tau": (0,)}}
    has_global = False
    discourages = dict.fromkeys(
        (NOT_THE_MEAN, OTHER_WEIGHTS),
        "{other}: does not act on the critical parameters, which are means of the models as "
        "clients sent them; with personalization=fedcac take another {other}; "
        "aggregator=sample_weighted and uniform fit",
    )
    saved = ("steps",)

    def __init__(self, tau: Annotated[float, Field(ge=0, le=1)], beta: PositiveFloat) -> None:
        super().__init__()
        self.tau, self.beta = tau, beta
        self.steps, self._similar = 0, 0.0

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' means and marks."""
        super().setup(setting)
        self._names = sorted(setting.model.shared_parameters)

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Remember the model w, with which training starts."""
        memory.update({name: client.weights[name].clone() for name in self._names})

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The marks M_i of critical elements: parameter name -> bool tensor of its shape."""
        trained = client.weights
        return {
            name: critical(memory.pop(name), trained[name].detach(), self.tau)
            for name in self._names
        }

    # The server's half.

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's own mean at its critical elements."""
        if client not in self._stored:
            return message
        own, weights = self._stored[client], dict(message.weights)
        for name in self._names:
            value = weights[name]
            marks, mean = (own[f"{each}/{name}"].to(value.device) for each in ("marks", "mean"))
            weights[name] = torch.where(marks, mean, value)
        return replace(message, weights=weights)

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The parameters that the client sent, for ``aggregate``."""
        return prefixed("model", {name: weights[name] for name in self._names})

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Compute the mean of each client and the clients similar to it."""
        self.steps += 1
        found = similar(self._overlaps(updates), self.steps / self.beta)
        models = {n: with_prefix("model", update.extras) for n, update in enumerate(updates)}
        for update, row in zip(updates, found.tolist(), strict=True):
            mean = weighted_mean(models, dict(enumerate(map(float, row))), self._names)
            own = {name: value.to(models[0][name]) for name, value in mean.items()}
            marks = {name: update.extras[name] for name in self._names}
            self._stored[update.client] = prefixed("mean", own) | prefixed("marks", marks)
        self._similar = found.sum().item() / len(updates) - 1

    def _overlaps(self, updates: Sequence[PartUpdate]) -> Tensor:
        """The overlaps O_ij of the K clients, [K, K] float64."""
        common = torch.zeros(len(updates), len(updates), dtype=torch.float64)
        for name in self._names:
            rows = torch.stack([update.extras[name].flatten() for update in updates]).double()
            common += (rows @ rows.T).cpu()
        return overlaps(common)

    def metrics(self) -> dict[str, float]:
        """The mean number of clients in the cohort that are similar to one of its clients."""
        return {"personalization/similar_clients": self._similar}


def critical(before: Tensor, after: Tensor, tau: float) -> Tensor:
    """Mark the share tau of elements with the largest |(after - before) after|, bool.

    Of elements with equal values at the limit all are marked. Elements with the value 0 never are.
    """
    sensitivity = ((after - before) * after).abs()
    count = rounded_down(tau, sensitivity.numel())
    if count == 0:
        return torch.zeros_like(sensitivity, dtype=torch.bool)
    limit = sensitivity.flatten().topk(count).values[-1]
    return (sensitivity >= limit) & (sensitivity > 0)


def overlaps(common: Tensor) -> Tensor:
    """The overlaps O_ij of K clients, [K, K]; 0 if client i has no critical element.

    Args:
        common: the number of elements that are critical for both client i and client j, [K, K].
    """
    own = common.diagonal()
    different = own[:, None] + own[None, :] - 2 * common
    return torch.where(own[:, None] > 0, 1 - different / (2 * own[:, None]), 0.0)


def similar(overlaps: Tensor, progress: float) -> Tensor:
    """For each of K clients, which clients are similar to it, [K, K] bool; each is to itself.

    Args:
        overlaps: O_ij [K, K].
        progress: t / beta.
    """
    itself = torch.eye(len(overlaps), dtype=torch.bool)
    others = overlaps[~itself]
    if len(others) == 0:
        return itself
    threshold = others.mean() + progress * (others.max() - others.mean())
    return (overlaps >= threshold - _ROUNDING) | itself
