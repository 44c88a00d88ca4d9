"""FedHKD: clients share mean features and mean predictions of their classes, and follow them."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import RUNNING_STATISTICS
from fedexp.config.schema import ShareBelowOne
from fedexp.contract import Client, Forward, Memory, Setting, Tensors
from fedexp.core.prototypes import class_prototypes
from fedexp.losses.prototype_loss import PrototypeLoss, mean_prototypes


class HyperKnowledge(PrototypeLoss):
    """Cross-entropy, and two distances from what all clients know of the classes (FedHKD).

    H_j [d] is the mean feature of class j over the clients' samples, and Q_j [C] the mean of the
    predictions $softmax(h(z) / T)$, where h is a client's head. With C classes the loss is the mean
    over the batch of

        $CE(h(z), y) + (lam / C) sum_j ||softmax(h(H_j) / T) - Q_j|| + gamma ||z - H_y||$

    (Chen et al., ICLR 2023). A client computes its means with its trained model, and sends those
    of the classes that are more than a given share of its samples. In the server's mean a client's
    weight is its number of samples of the class. The distances of a class that nobody has sent are
    left out. The paper also clips and adds noise to the features that are sent, for differential
    privacy; here they are sent as they are.

    The released code has the divergence of the predictions and the mean squared difference of the
    features in place of the two distances. Its clients send all classes, and a class's H and Q are
    from the last client that sent it.

    Args:
        lam: weight of the distance of predictions.
        gamma: weight of the distance of features.
        temperature: T.
        threshold: the share of a client's samples above which it sends a class.
    """

    unread_if = {"temperature": {"lam": (0,)}}
    forbids = {
        RUNNING_STATISTICS: "loss=hyper_knowledge: mean features would change the running "
        "statistics of this {other}; use head.feature_norm=l2",
    }
    features: Tensor
    predictions: Tensor
    holds: Tensor

    def __init__(
        self,
        lam: NonNegativeFloat,
        gamma: NonNegativeFloat,
        temperature: PositiveFloat,
        threshold: ShareBelowOne,
    ) -> None:
        super().__init__()
        self.lam, self.gamma = lam, gamma
        self.temperature, self.threshold = temperature, threshold

    def setup(self, setting: Setting) -> None:
        """Make buffers for H [C, d], Q [C, C] and the mask [C] of known classes."""
        super().setup(setting)
        classes = setting.num_classes
        features = torch.zeros(classes, setting.feature_dim)
        self.register_buffer("features", features, persistent=False)
        self.register_buffer("predictions", torch.zeros(classes, classes), persistent=False)
        self.register_buffer("holds", torch.zeros(classes), persistent=False)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        assert batch.head is not None
        y = batch.targets
        labels = F.cross_entropy(batch.logits, y, reduction="none")
        away = torch.linalg.vector_norm(batch.z - self.features[y], dim=1) * self.holds[y]
        predicted = torch.softmax(batch.head(self.features) / self.temperature, dim=1)
        gaps: Tensor = torch.linalg.vector_norm(predicted - self.predictions, dim=1) * self.holds
        return batch.mean(labels + self.gamma * away) + self.lam * gaps.mean()

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Mean features and predictions [C, d + C] of each class, and the samples [C] in them.

        The number of samples is 0 for a class that the client does not send.
        """
        z, labels = client.features()
        with torch.no_grad():
            predicted = torch.softmax(client.classify(z) / self.temperature, dim=1)
        means, counts = class_prototypes(torch.cat([z, predicted], dim=1), labels, self.num_classes)
        sent = counts > self.threshold * counts.sum()
        return {"prototypes": means * sent.unsqueeze(1), "counts": counts * sent}

    def merge(self, prototypes: Tensor, counts: Tensor) -> Tensors:
        """Average the clients' means; ``holds`` says which classes were sent."""
        means, holds = mean_prototypes(prototypes, counts)
        width = self.features.shape[1]
        features, predictions = means[:, :width].contiguous(), means[:, width:].contiguous()
        return {"features": features, "predictions": predictions, "holds": holds}
