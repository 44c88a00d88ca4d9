"""FedPAC: a shared body, and for each client a different combination of the cohort's heads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedexp.contract import Client, Loss, Memory, Network, PartMessage, PartUpdate, Tensors
from fedexp.core.prototypes import class_prototypes
from fedexp.personalization.client_models import StoresModels
from fedexp.personalization.fedrep import FedRep


def feature_statistics(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Compute the statistics h and V of a client's features, for ``collaboration_weights``.

    The features of the client's n samples are z. p_c is the share of class c, mu_c is the mean
    feature of class c, and mean_c is the average over the samples of class c. The statistic h has a
    row h_c = p_c mu_c for each class.
    V = (sum_c p_c mean_c ||z||^2 - sum_c p_c^2 ||mu_c||^2) / n is the variance of h as an estimate
    from n samples.

    Args:
        features: z [n, d].
        labels: [n].
        num_classes: C.

    Returns:
        h [C, d], and V, a scalar. They are computed in float64 and returned in the dtype of
        ``features``.
    """
    z = features.double()
    means, counts = class_prototypes(z, labels, num_classes)
    h = means * (counts / len(z)).unsqueeze(1)
    variance = (z.square().sum() / len(z) - h.square().sum()) / len(z)
    return h.to(features.dtype), variance.clamp(min=0).to(features.dtype)


def collaboration_weights(statistics: Tensor, variances: Tensor) -> np.ndarray:
    """The weights alpha_ij of client j's classifier in the combined classifier of client i.

    Row i minimises sum_j alpha_ij^2 V_j + sum_c ||sum_j alpha_ij (h_ic - h_jc)||^2 over weights
    alpha_ij >= 0 whose sum is 1. h_ic is the row of class c in the h of client i. The first term is
    a variance, and the second is a squared bias.

    Args:
        statistics: h [K, C, d] of the K clients.
        variances: V [K] of the K clients.

    Returns:
        alpha [K, K] float64.
    """
    rows = statistics.double().cpu().flatten(1).numpy()
    rows = rows - rows.mean(axis=0)  # only differences matter; small numbers are more precise
    inner, spread = rows @ rows.T, np.diag(variances.double().cpu().numpy())
    weights = []
    for i in range(len(rows)):
        bias = inner - inner[i] - inner[:, i : i + 1] + inner[i, i]
        weights.append(_smallest_on_simplex(spread + bias))
    return np.stack(weights)


def combined(tensors: list[Tensor], weights: np.ndarray) -> Tensor:
    """Compute the weighted sum of tensors of one shape in float64, and return it in their dtype."""
    stacked = torch.stack(tensors)
    shares = torch.as_tensor(weights, dtype=torch.float64, device=stacked.device)
    mean: Tensor = torch.tensordot(shares, stacked.double(), dims=1)
    return mean.to(stacked.dtype)


def _smallest_on_simplex(matrix: np.ndarray) -> np.ndarray:
    """Find the weights x >= 0 with sum 1 that minimise x' P x.

    P is ``matrix``, symmetric without negative eigenvalues. With P = R'R the function solves a
    nonnegative least squares problem: it finds the y >= 0 that minimises ||R y||^2 + (sum y - 1)^2.
    Among all y with a given sum, a multiple of x is the best. So x = y / sum y.
    """
    values, vectors = np.linalg.eigh(matrix)
    scale = values[-1] if values[-1] > 0 else 1.0
    root = np.sqrt(np.clip(values / scale, 0, None))[:, None] * vectors.T
    goal = np.append(np.zeros(len(matrix)), 1.0)
    solution, _ = nnls(np.vstack([root, np.ones(len(matrix))]), goal)
    weights: np.ndarray = solution / solution.sum()
    return weights


class FedPAC(StoresModels, FedRep):
    """Each client gets a combination of the cohort's heads (Xu et al., ICLR 2023, Algorithm 1).

    The body is the backbone. A client first trains its head alone, then its body alone. It sends
    body and head, and the statistics h and V of its features under the received body
    (``feature_statistics``). The server averages the bodies. For each client of the cohort it
    combines the cohort's heads with the weights of ``collaboration_weights``. The client gets this
    head when it is next drawn.

    The paper's other half is the alignment of features with global centroids: use
    ``loss=prototype_align``. This loss ignores samples whose class has no centroid yet; the
    released code pulls their features to the client's own centroid of the class. The released code
    trains the head with a learning rate of 0.1, and the body with 0.01 or 0.02; here head and body
    have the same learning rate. The released code sets collaboration weights below 0.001 to 0; here
    small weights stay as they are. It measures a client's personal model twice in a round: as
    received, with the new body and the combined head, and after local training. Here the personal
    model is the second one, as in ``FedPer``. The code does not say which of the two is in the
    paper's tables. Float buffers of a head are combined like parameters. Integer buffers are copied
    from the client's own head.

    Args:
        head_epochs: epochs of training the head, even if ``local.steps`` is set. The body is
            trained for ``local.epochs`` or ``local.steps``.
        global_model: whether a global model is evaluated; see ``FedPer``.
    """

    def create(self, network: Network, loss: Loss) -> None:
        """Store the number of classes, and the names of the head's buffers that are never sent."""
        self._num_classes = network.num_classes
        self._derived = {f"head.{name}" for name in network.head.derived}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the statistics h and V of the features under the received body, for ``report``.

        See ``feature_statistics``.
        """
        h, variance = feature_statistics(*client.features(), self._num_classes)
        memory.update(h=h, variance=variance)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The weights of the trained head, and two statistics of the client's features.

        The statistics are ``h`` [C, d] and ``variance``, a scalar; see ``feature_statistics``.
        """
        head = {
            name: w.clone()
            for name, w in client.weights.items()
            if name.startswith("head.") and name not in self._derived
        }
        return head | {name: memory.pop(name) for name in ("h", "variance")}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Compute the combined head of each client of the cohort."""
        heads = [dict(update.extras) for update in updates]
        h = torch.stack([head.pop("h") for head in heads])
        variances = torch.stack([head.pop("variance") for head in heads])
        for update, own, weights in zip(
            updates, heads, collaboration_weights(h, variances), strict=True
        ):
            self._stored[update.client] = {
                name: combined([head[name] for head in heads], weights)
                if value.is_floating_point()
                else value
                for name, value in own.items()
            }

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's combined head; ``message`` if there is none yet."""
        if client not in self._stored:
            return message
        device = next((w.device for w in message.weights.values()), torch.device("cpu"))
        head = {name: w.to(device) for name, w in self._stored[client].items()}
        return replace(message, weights=message.weights | head)
