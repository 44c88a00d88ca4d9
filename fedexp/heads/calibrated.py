"""CCVR: the server calibrates the classifier on features drawn from each class's Gaussian."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Generator, Tensor

from fedexp.config.compatibility.declaration import TRAINED_HEAD
from fedexp.config.compatibility.traits import ADDS_DRIFT, NOT_THE_MEAN, OFFSET_START, READS_ROUNDS
from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.errors import InputError
from fedexp.heads.global_classifier import GlobalClassifier, trained_classifier


def moments(features: Tensor) -> Tensor:
    """Compute the sums of z z^T and of z over the n rows z of ``features`` [n, d].

    The result is [d + 1, d] float32: the matrix sum z z^T, then the vector sum z as last row.
    """
    z = features.double()
    return (F.pad(z, (0, 1), value=1.0).T @ z).float()


def mean_and_covariance(sums: Tensor, count: float) -> tuple[Tensor, Tensor]:
    """Mean [d] and unbiased covariance [d, d] of features, from the sums that ``moments`` returns.

    If ``sums`` is the total over the clients, the results are CCVR's Eq. 3 and 4. If there is only
    one feature, its covariance is 0.

    Args:
        sums: the ``moments`` of the features [d + 1, d].
        count: the number of features.
    """
    mean = sums[-1] / count
    scatter = sums[:-1] - count * torch.outer(mean, mean)
    return mean, scatter / max(count - 1, 1)


def gaussian_features(mean: Tensor, covariance: Tensor, count: int, draw: Generator) -> Tensor:
    """Draw features [count, d] from N(mean, covariance), all float64.

    The covariance may be singular. ``draw`` is a CPU generator.
    """
    # The symmetric root is, unlike the eigenvectors, a continuous function of the covariance.
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    noise = torch.randn(count, len(mean), generator=draw, dtype=torch.float64)
    features: Tensor = mean + to_device(noise, root.device) @ root
    return features


class Calibrated(GlobalClassifier):
    """A linear head that the server calibrates (CCVR; Luo et al., NeurIPS 2021, Alg. 1).

    In a calibration round the global weights do not change. By default only the last round is a
    calibration round. Each client of the cohort computes the features z of its training samples by
    the received model in eval mode. For each class that it holds, it sends the number of features,
    $sum z$ and $sum z z^T$. (In the paper it sends the mean and covariance instead of the two sums;
    the server's result is the same.) The server then computes the mean and covariance of each class
    (Eq. 3 and 4). It draws ``features`` virtual features of each class from the Gaussian with this
    mean and covariance. It trains the classifier on the virtual features, starting from the
    averaged classifier. The global model uses the calibrated classifier until its weights change;
    local and personal models never use it.

    The paper calibrates after the last round of training, with all clients. If
    ``clients.per_round`` = ``clients.count``, the last of R rounds here is the paper's calibration
    after $R - 1$ rounds. If the cohort is smaller, the Gaussians describe only the features of the
    cohort, and a class that no client of the cohort holds has no virtual feature. Clients train in
    a calibration round, too, but the server discards their weights.

    Args:
        feature_dim: d.
        num_classes: C.
        bias: whether the classifier that clients train has a bias.
        every: the number of rounds from one calibration round to the next, to get a curve over the
            rounds. The last round is always a calibration round. If None, it is the only
            calibration round. At least 2, since a calibration round does not train the model.
        features: number of virtual features of each class.
        epochs: epochs of training on the virtual features.
        batch_size: number of virtual features in a step.
        lr: learning rate of this training.
    """

    traits = GlobalClassifier.traits | {READS_ROUNDS}
    saved = ("calibrations", "classifier")
    forbids = {
        **TRAINED_HEAD,
        ADDS_DRIFT: "head=calibrated: {other} moves the global model after its features were "
        "measured; use another regularizer",
        OFFSET_START: "head=calibrated: with this {other} clients measure features with other "
        "weights than those of the global model; use another regularizer, or a download without "
        "error feedback",
    }

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        bias: bool,
        every: Annotated[int, Field(ge=2)] | None,
        features: PositiveInt,
        epochs: PositiveInt,
        batch_size: PositiveInt,
        lr: PositiveFloat,
    ) -> None:
        super().__init__(feature_dim, num_classes, bias, own_bias=True)
        self.is_global.fill_(False)
        self.every, self.features_per_class = every, features
        if every is not None:  # further rounds follow those that leave the weights as they were
            self.traits = self.traits | {NOT_THE_MEAN}
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        self.calibrations = 0
        self.classifier: Tensor | None = None

    def setup(self, setting: Setting) -> None:
        """Store the number of the last round.

        Raises:
            InputError: the classifier is private to the clients.
        """
        self.seed, self.last_round = setting.seed, setting.rounds
        if "head.linear.weight" not in setting.model.shared:
            raise InputError(
                "head=calibrated: the server has no classifier to calibrate, because each client "
                "keeps its own; use another personalization"
            )

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """The calibrated classifier with its bias as last column; empty if none is calibrated."""
        if self.classifier is None:
            return {}
        return {"retrained": self.classifier.to(self.retrained.device)}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """In a calibration round calibrate the classifier and return the current weights.

        In any other round forget the calibrated classifier and return the merged weights.
        """
        if "counts" not in sums:
            self.classifier = None  # it was calibrated for the weights that are replaced now
            return merged
        self.calibrations += 1
        draw = torch_generator(self.seed, "calibrated_head", self.calibrations)
        labels = sums["counts"].nonzero().flatten().tolist()
        features = [self._virtual(label, sums, draw) for label in labels]
        weight = current["head.linear.weight"]
        bias = current.get("head.linear.bias", weight.new_zeros(len(weight)))
        self.classifier = trained_classifier(
            torch.column_stack([weight, bias]),
            torch.cat(features).to(weight),
            torch.tensor(labels, device=weight.device).repeat_interleave(self.features_per_class),
            self.epochs,
            self.batch_size,
            self.lr,
            draw,
        )
        return current

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """In a calibration round, store class counts and moments of the received model's features.

        In every round predict with W, the classifier that clients train.
        """
        self.is_global.fill_(False)
        if client.is_personal or not self._calibrates_in(client.round):
            return
        z, targets = client.features()
        # The other parts may let the client train on fewer samples, so they are counted here.
        memory["counts"] = client.data.class_counts.float()
        for label in memory["counts"].nonzero().flatten().tolist():
            memory[f"moments_{label}"] = moments(z[targets == label])

    def report(self, client: Client, memory: Memory) -> Tensors:
        """In a calibration round: the client's class counts [C] and ``moments`` of its classes."""
        return {name: memory.pop(name) for name in list(memory)}

    def _calibrates_in(self, round: int) -> bool:
        """Whether ``round`` is a calibration round."""
        return round == self.last_round or (self.every is not None and round % self.every == 0)

    def _virtual(self, label: int, sums: Tensors, draw: Generator) -> Tensor:
        """The virtual features [features, d] of a class."""
        mean, covariance = mean_and_covariance(
            sums[f"moments_{label}"], sums["counts"][label].item()
        )
        return gaussian_features(mean, covariance, self.features_per_class, draw)
