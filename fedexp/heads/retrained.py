"""CReFF: the server learns features and retrains the global model's classifier on them."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Generator, Tensor

from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.heads.global_classifier import GlobalClassifier, trained_classifier

_EPS = 1e-6


def class_gradients(features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The gradient of each class's mean cross-entropy with respect to a linear classifier V.

    Row j of class c's gradient is mean_i (softmax(V z_i)_j - [j = c]) z_i, where z_i are the
    features of class c. [j = c] is 1 if j is c, and 0 otherwise.

    Args:
        features: z [A, n, d], n features of each of A classes.
        labels: [A] the index of each of the A classes.
        weight: V [C, d], or [C, d + 1] with a bias in the last column.

    Returns:
        The gradients [A, C, d] or [A, C, d + 1]. They are differentiable with respect to
        ``features``.
    """
    if weight.shape[1] > features.shape[2]:
        features = F.pad(features, (0, 1), value=1.0)
    probabilities = (features @ weight.T).softmax(dim=2)
    errors = probabilities - F.one_hot(labels, len(weight)).unsqueeze(1)
    gradients: Tensor = errors.transpose(1, 2) @ features / features.shape[1]
    return gradients


def mismatch(gradients: Tensor, targets: Tensor, with_bias: bool = False) -> Tensor:
    """Compute the distance of two sets of gradients, a scalar.

    For each class and each row of the classifier V, the function computes 1 - cosine of the two
    gradients. The distance is the sum of these numbers. 1e-6 is added to the cosine's denominator.
    If V has a bias, the last column of the gradients is compared as one more vector [C] for each
    class (CReFF's released code).

    Args:
        gradients: [A, C, d], or [A, C, d + 1] with a bias.
        targets: the other gradients, of the same shape.
        with_bias: whether the last column belongs to the bias of V.
    """
    if with_bias:
        biases = mismatch(gradients[..., -1:].mT, targets[..., -1:].mT)
        return mismatch(gradients[..., :-1], targets[..., :-1]) + biases
    products = (gradients * targets).sum(dim=2)
    lengths = torch.linalg.vector_norm(gradients, dim=2) * torch.linalg.vector_norm(targets, dim=2)
    distances: Tensor = 1 - products / (lengths + _EPS)
    return distances.sum()


def match_gradients(
    features: Tensor, labels: Tensor, targets: Tensor, weight: Tensor, steps: int, lr: float
) -> Tensor:
    """Change features so that their ``class_gradients`` get the directions of ``targets``.

    The function does plain gradient descent on ``mismatch``.

    Args:
        features: [A, n, d] the initial features of A classes.
        labels: [A] the numbers of the A classes.
        targets: [A, C, d] or [A, C, d + 1] gradients of the same classes.
        weight: V, see ``class_gradients``.
        steps: number of gradient steps.
        lr: learning rate.

    Returns:
        The features [A, n, d], detached from the graph.
    """
    with_bias = weight.shape[1] > features.shape[2]
    for _ in range(steps):
        features = features.detach().requires_grad_()
        loss = mismatch(class_gradients(features, labels, weight), targets, with_bias)
        (gradient,) = torch.autograd.grad(loss, features)
        features = features.detach() - lr * gradient
    return features.detach()


def retrained_classifier(
    features: Tensor, epochs: int, batch_size: int, lr: float, generator: Generator
) -> Tensor:
    """Train a new linear layer; return its weight with the bias as last column, [C, d + 1].

    The layer is trained with cross-entropy by plain SGD over shuffled batches. The initial weights
    are uniform between -1 / sqrt(d) and 1 / sqrt(d), as in PyTorch.

    Args:
        features: [C, n, d], n features of each class.
        epochs: passes over all features.
        batch_size: number of features in a step.
        lr: learning rate.
        generator: draws the initial weights and the order of the features.
    """
    classes, count, dim = features.shape
    start: Tensor = (2 * torch.rand(classes, dim + 1, generator=generator) - 1) / dim**0.5
    labels = torch.arange(classes, device=features.device).repeat_interleave(count)
    return trained_classifier(
        start, features.flatten(0, 1), labels, epochs, batch_size, lr, generator
    )


class Retrained(GlobalClassifier):
    """A linear head W that clients train as in FedAvg, and a head V for the global model.

    This is CReFF (Shang et al., IJCAI 2022). The server holds V and F. F are learned features:
    ``features`` vectors for each class. Initially F is drawn from N(0, 1), and V is a randomly
    initialised linear layer. Before local training, a client computes for each class that it holds
    the gradient of the mean cross-entropy with respect to V. For this, the received backbone is in
    eval mode. The server averages each class's gradient over the clients that sent it. It changes F
    so that the gradients computed on F get the directions of these averages (``match_gradients``).
    Then it trains a new V on F (``retrained_classifier``).

    Only the global model uses V. W is sent, trained and averaged as with ``head=linear``, so local
    and personal models are exactly those of FedAvg.

    Args:
        feature_dim: d.
        num_classes: C.
        bias: whether W has a bias.
        retrained_bias: whether V has a bias. If true, as in the authors' code, gradients of the
            bias are sent and matched, too. If false, as in the study of FedNH (Dai et al., AAAI
            2023), V is trained with a bias, and the bias is then removed.
        features: number of learned features of each class.
        match_steps: steps of gradient matching in a round.
        match_lr: learning rate of gradient matching.
        retrain_epochs: epochs of training V in a round.
        retrain_batch_size: number of features in a step of training V.
        retrain_lr: learning rate of training V.
        draws: how often a client draws images of a class. The gradient of the class is the mean
            over the draws.
        draw_size: number of images in a draw. They are drawn without replacement and augmented as
            in local training. If a class has fewer images, a draw has all its images.
    """

    saved = ("round", "features", "classifier")

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        bias: bool,
        retrained_bias: bool,
        features: PositiveInt,
        match_steps: NonNegativeInt,
        match_lr: PositiveFloat,
        retrain_epochs: PositiveInt,
        retrain_batch_size: PositiveInt,
        retrain_lr: PositiveFloat,
        draws: PositiveInt,
        draw_size: PositiveInt,
    ) -> None:
        super().__init__(feature_dim, num_classes, bias, retrained_bias)
        self.features_per_class = features
        self.match_steps, self.match_lr = match_steps, match_lr
        self.retrain_epochs, self.retrain_lr = retrain_epochs, retrain_lr
        self.retrain_batch_size = retrain_batch_size
        self.draws, self.draw_size = draws, draw_size
        # The server's V: the buffer ``retrained`` belongs to the currently loaded model.
        self.classifier = self.retrained.clone()
        self.round = 0
        self._metrics: dict[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """Draw the initial features F of each class, which the server will learn, from N(0, 1)."""
        self.seed = setting.seed
        shape = (setting.num_classes, self.features_per_class, setting.feature_dim)
        self.features = torch.randn(shape, generator=torch_generator(self.seed, "head_features"))

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """The server's classifier V. If V has a bias, the bias is the last column."""
        return {"retrained": self.classifier.to(self.retrained.device)}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Learn the server's features F, and train its classifier V on them.

        The merged weights are returned unchanged.
        """
        self.round += 1
        device = self.retrained.device
        senders = sums["senders"]
        classes = senders.nonzero().flatten()
        means = [sums[f"gradient/{label}"] / senders[label] for label in classes.tolist()]
        targets, labels = torch.stack(means).float().to(device), classes.to(device)
        features, weight = self.features.to(device), self.classifier.to(device)
        matched = match_gradients(
            features[labels], labels, targets, weight, self.match_steps, self.match_lr
        )
        gradients = class_gradients(matched, labels, weight)
        distance = mismatch(gradients, targets, self.own_bias).item()
        vectors = len(targets) * (targets.shape[1] + self.own_bias)
        self._metrics = {"retrained/mismatch": distance / vectors}
        self.features = features.index_copy(0, labels, matched)
        trained = retrained_classifier(
            self.features,
            self.retrain_epochs,
            self.retrain_batch_size,
            self.retrain_lr,
            torch_generator(self.seed, "retrained_head", self.round),
        )
        self.classifier = self._kept(trained)
        return merged

    def metrics(self) -> dict[str, float]:
        """``mismatch`` after the last step of gradient matching, divided by its number of terms."""
        return self._metrics

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the class gradients of the server's classifier V, then predict with W."""
        if not client.is_personal:
            # The other parts may let the client train on fewer samples, so they are counted here.
            memory["senders"] = (client.data.class_counts > 0).float()
            memory.update(self._gradients(client))
        self.is_global.fill_(False)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The ``class_gradients`` of the client's classes, and a mask [C] of these classes."""
        return {name: memory.pop(name) for name in list(memory)}

    def _gradients(self, client: Client) -> Tensors:
        """Compute the gradient of each class that the client holds, as ``gradient/<class>``.

        This is the gradient of the class's mean cross-entropy with respect to V.
        """
        labels = client.data.labels
        weight = self.retrained.clone().requires_grad_()
        weights = client.weights | {"head.retrained": weight}
        gradients = {}
        for label in client.data.class_counts.nonzero().flatten().tolist():
            own = (labels == label).nonzero().flatten()
            inputs = self._drawn_inputs(client, label, own)
            logits = client.logits_with(weights, inputs)
            loss = F.cross_entropy(logits, torch.full_like(labels[:1], label).expand(len(logits)))
            (gradients[f"gradient/{label}"],) = torch.autograd.grad(loss, weight)
        return gradients

    def _drawn_inputs(self, client: Client, label: int, own: Tensor) -> Tensor:
        """The images of all draws of a class, one draw after another. All draws have the same size.

        Args:
            client: the client whose images are drawn.
            label: the class of the images.
            own: positions of the client's images of this class.
        """
        draw = torch_generator(self.seed, "head_gradients", client.round, client.data.client, label)
        orders = [torch.randperm(len(own), generator=draw) for _ in range(self.draws)]
        chosen = torch.cat([order[: self.draw_size] for order in orders])
        return client.data.inputs(own[to_device(chosen, own.device)], augment=draw)
