"""Angles between class vectors: classifier weights and mean features (FedGELA, Figures 2-5)."""

from collections.abc import Mapping, Sequence
from math import fsum, isnan

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.measures.measure import AfterRound, EveryNth, Measured, Outline
from fedexp.measures.scoring.predictions import Predictions


class Angles(EveryNth):
    """Mean angles between the class vectors of the global model, in degrees.

    ``global_angles`` defines the metrics; the measure ``personal`` has the angles of personal
    models. Nothing is measured if the method has no global model, or if no client trains on the
    classes of the test split.

    Args:
        every: rounds between measurements; the last round is always measured.
    """

    def check(self, outline: Outline) -> None:
        """Note whether there is a global model, and a test split that it can classify."""
        lacking = sorted({Need.GLOBAL_MODEL, Need.TEST_CLASSES} - outline.given)
        self.idle = f"without {lacking[0]}" if lacking else ""

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``geometry/<kind>_angle*`` of the global model."""
        data = after.data
        predictions = None if data.description.unseen_classes else after.global_predictions()
        if predictions is None:
            return Measured()
        counts = data.counted_classes
        if data.description.per_token:
            counts = counts[:0]  # they count sequences, but the classes here belong to tokens
        return Measured(global_angles(predictions, counts))


def mean_pairwise_angle(vectors: Tensor) -> float:
    """Mean angle in degrees between two rows of ``vectors`` [C, d], over all pairs of rows.

    Args:
        vectors: one vector of d numbers for each of the C classes; zero vectors have no direction
            and are left out.

    Returns:
        Degrees in [0, 180]; NaN if fewer than two vectors remain. If the C vectors are spread as
        far apart as possible (a simplex equiangular tight frame), the angle is arccos(-1/(C-1)).
    """
    present = vectors.norm(dim=1) > 0
    unit = F.normalize(vectors[present].double(), dim=1)
    if len(unit) < 2:
        return float("nan")
    upper = torch.triu_indices(len(unit), len(unit), offset=1)
    return _degrees((unit @ unit.T)[upper[0], upper[1]]).mean().item()


def mean_angles_within(vectors: Tensor, members: Tensor) -> Tensor:
    """For each of N sets of classes, the mean angle over all pairs of vectors in the set.

    The leading dimensions ``...`` of the shapes stand for one or more models.

    Args:
        vectors: [..., C, d] one vector for each class; zero vectors are left out.
        members: [..., N, C] bool: whether each class is in each set.

    Returns:
        [..., N] degrees, float64; NaN for a set with fewer than two vectors.
    """
    unit = F.normalize(vectors.double(), dim=-1)
    angles = _degrees(unit @ unit.mT)
    angles.diagonal(dim1=-2, dim2=-1).zero_()
    kept = (members & (vectors.norm(dim=-1) > 0).unsqueeze(-2)).double()
    sizes = kept.sum(dim=-1)
    means: Tensor = ((kept @ angles) * kept).sum(dim=-1) / (sizes * (sizes - 1))
    return means


def global_angles(predictions: Predictions, class_counts: Tensor) -> dict[str, float]:
    """The metrics ``geometry/<kind>_angle*`` of the global model, for each kind of class vector.

    ``<kind>_angle`` is the mean angle over all pairs of classes. For
    ``<kind>_angle_global_existing``, the mean over the pairs of classes that a client holds is
    computed for each client, and then averaged over clients. ``<kind>_angle_global_missing`` is
    the same for the pairs of classes that a client lacks (FedGELA, Figures 2 and 5). Clients
    without data, and clients with fewer than two classes to compare, are left out. A metric that is
    NaN is left out.

    Args:
        predictions: the global model's predictions on the test split.
        class_counts: [N, C] number of training samples of each class at each client. In a large
            population it has rows only for the clients whose classes are counted.
    """
    holds = class_counts.cpu()[class_counts.cpu().sum(dim=1) > 0] > 0
    angles = {}
    for kind, vectors in predictions.class_vectors.items():
        angles[f"geometry/{kind}_angle"] = mean_pairwise_angle(vectors)
        for name, members in (("existing", holds), ("missing", ~holds)):
            within = mean_angles_within(vectors, members)
            angles[f"geometry/{kind}_angle_global_{name}"] = within.nanmean().item()
    return _measured(angles)


def local_angles(
    predictions: Sequence[Predictions], class_counts: Tensor
) -> list[dict[str, float]]:
    """``geometry/<kind>_angle_existing`` and ``geometry/<kind>_angle_missing`` of each client.

    ``<kind>`` is a key of ``Predictions.class_vectors``. ``existing`` is the mean angle in degrees
    between the vectors of two classes that the client holds, over all pairs. ``missing`` is the
    mean over pairs of classes that the client lacks. An angle that is NaN is left out.

    Args:
        predictions: the predictions of K clients' models.
        class_counts: [K, C] number of training samples of each class at each of these clients.
    """
    holds = class_counts.cpu() > 0
    members = torch.stack([holds, ~holds], dim=1)
    found: list[dict[str, float]] = [{} for _ in predictions]
    for kind in predictions[0].class_vectors:
        vectors = torch.stack([each.class_vectors[kind] for each in predictions])
        angles = mean_angles_within(vectors, members).tolist()
        for each, (existing, missing) in zip(found, angles, strict=True):
            each[f"geometry/{kind}_angle_existing"] = existing
            each[f"geometry/{kind}_angle_missing"] = missing
    return [_measured(each) for each in found]


def mean_over_clients(clients: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metric -> its mean over the clients that measured this metric."""
    names = dict.fromkeys(name for client in clients for name in client)
    measured = {name: [client[name] for client in clients if name in client] for name in names}
    return {name: fsum(values) / len(values) for name, values in measured.items()}


def _degrees(cosines: Tensor) -> Tensor:
    return torch.rad2deg(cosines.clamp(-1, 1).arccos())


def _measured(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not isnan(value)}
