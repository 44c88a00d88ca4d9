"""Geometry of classifiers and features: how far apart the classes stand (FedGELA, Figures 2-5)."""

from collections.abc import Mapping, Sequence
from math import fsum, isnan

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.engines.predictions import Predictions


def mean_pairwise_angle(vectors: Tensor, keep: Tensor | None = None) -> float:
    """Mean angle in degrees between the rows of ``vectors`` [C, d], over all pairs of rows.

    Args:
        vectors: one vector for each class; zero vectors have no direction and are left out.
        keep: [C] bool, the classes to compare; all of them by default.

    Returns:
        Degrees in [0, 180]; NaN with fewer than two vectors. A simplex ETF has arccos(-1/(C-1)).
    """
    present = vectors.norm(dim=1) > 0
    unit = F.normalize(vectors[present if keep is None else present & keep].double(), dim=1)
    if len(unit) < 2:
        return float("nan")
    upper = torch.triu_indices(len(unit), len(unit), offset=1)
    cosines = (unit @ unit.T)[upper[0], upper[1]]
    return torch.rad2deg(cosines.clamp(-1, 1).arccos()).mean().item()


def global_angles(predictions: Predictions) -> dict[str, float]:
    """``geometry/classifier_angle`` and ``geometry/feature_angle`` of the global model."""
    return _measured(
        {
            f"geometry/{kind}_angle": mean_pairwise_angle(vectors)
            for kind, vectors in predictions.class_vectors.items()
        }
    )


def local_angles(predictions: Predictions, class_counts: Tensor) -> dict[str, float]:
    """The angles of one client's model, among the classes it holds and among those it lacks."""
    exists = class_counts.cpu() > 0
    return _measured(
        {
            f"geometry/{kind}_angle_{name}": mean_pairwise_angle(vectors, keep)
            for kind, vectors in predictions.class_vectors.items()
            for name, keep in (("existing", exists), ("missing", ~exists))
        }
    )


def mean_over_clients(clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the clients that measured it."""
    names = dict.fromkeys(name for client in clients for name in client)
    measured = {name: [client[name] for client in clients if name in client] for name in names}
    return {name: fsum(values) / len(values) for name, values in measured.items()}


def _measured(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not isnan(value)}
