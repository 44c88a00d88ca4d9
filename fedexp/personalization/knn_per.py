"""kNN-Per: the global model's prediction, mixed with a vote of the client's nearest samples."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.schema import Share
from fedexp.contract import Client, Memory, PartMessage, Setting
from fedexp.personalization.received import Received


class KNNPer(Received):
    """Mixes the global model's prediction with a prediction by nearest neighbours (kNN-Per).

    The mixture is $share * kNN + (1 - share) * softmax$ of the global model (Marfoq et al., ICML
    2022, Eq. 7). A client stores the features z_i and labels y_i of its training samples under the
    global model of the evaluated round. d_i is the distance of sample i from an input. The kNN
    prediction of class y is proportional to a sum of $exp(-d_i)$. The sum is over the samples i
    with $y_i = y$ among the k nearest samples. Only the global model is trained, as in FedAvg. The
    paper chooses the share for each client on validation data; here all clients have the same
    share. With its default settings the released code mixes the kNN prediction with the logits of
    the global model, not with their softmax.

    Args:
        share: lambda, the weight of the kNN prediction.
        neighbours: k. A client with fewer samples uses all its samples.
        distance: d_i. "euclidean" is ||z - z_i|| / scale, the paper's distance. "gaussian" is
            ||z - z_i||^2 / (feature_dim * scale), as in the released code.
        scale: divides the distance; see ``distance``.
    """

    unread_if = {
        "neighbours": {"share": (0,)},
        "distance": {"share": (0,)},
        "scale": {"share": (0,)},
    }
    takes_only_merged = True
    takes_tokens = False
    store_z: Tensor
    store_y: Tensor
    is_stored: Tensor

    def __init__(
        self,
        share: Share,
        neighbours: PositiveInt,
        distance: Literal["euclidean", "gaussian"],
        scale: PositiveFloat,
    ) -> None:
        super().__init__()
        self.share, self.neighbours = share, neighbours
        self.distance, self.scale = distance, scale

    def setup(self, setting: Setting) -> None:
        """Make buffers for features [n, d], one-hot labels [n, C] and a mask [n].

        n is the number of samples of the largest client.
        """
        size = max(int(setting.clients.sizes.max()), *setting.clients.held_out, 1)
        features = torch.zeros(size, setting.feature_dim)
        labels = torch.zeros(size, setting.num_classes)
        self.register_buffer("store_z", features, persistent=False)
        self.register_buffer("store_y", labels, persistent=False)
        self.register_buffer("is_stored", torch.zeros(size, dtype=torch.bool), persistent=False)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Store the client's features and labels before its personal model is evaluated."""
        if not client.is_personal:
            return
        z, labels = client.features()
        self.is_stored.zero_()
        self.is_stored[: len(z)] = True
        self.store_z[: len(z)] = z
        self.store_y[: len(z)] = F.one_hot(labels, self.store_y.shape[1]).to(self.store_y.dtype)

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """Logits [B, C]: the logarithm of the mixture of the model's and the kNN prediction."""
        # Matrix products would be faster, but their rounding may reorder close samples.
        away = torch.cdist(z, self.store_z, compute_mode="donot_use_mm_for_euclid_dist")
        if self.distance == "gaussian":
            away = away.square() / z.shape[-1]
        away = torch.where(self.is_stored, away / self.scale, torch.inf)
        nearest = torch.topk(away, min(self.neighbours, away.shape[-1]), largest=False)
        votes = torch.softmax(-nearest.values, dim=-1)  # normalised without underflow
        of_classes = (votes.unsqueeze(-1) * self.store_y[nearest.indices]).sum(dim=-2)
        mixed = self.share * of_classes + (1 - self.share) * torch.softmax(logits, dim=-1)
        return mixed.log()
