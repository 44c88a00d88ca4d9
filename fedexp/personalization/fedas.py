"""FedAS: a private head, and a shared body that is aligned with the client's previous body."""

from collections.abc import Iterator

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from fedexp.config.compatibility.traits import MOVES_START
from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.core.forward import at_least_float32
from fedexp.core.functional import call_in_eval_mode
from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.personalization.fedper import FedPer, GlobalModel


class FedAS(FedPer):
    """Aligns each received body with the client's previous body (Yang et al., CVPR 2024).

    The head is private, and the body is the backbone. The previous features are the features of the
    client's training data under its latest local model. Their class means stay at the client.
    Before local training, SGD changes the received body so that its features come closer to these
    class means (``distance_from_means``). Then body and head are trained together. In its first
    round a client has no previous features and does not align the body.

    The method's other half is ``aggregator=fisher_weighted``. By default the alignment has learning
    rate, epochs and batch size of the released code. The released code also aligns a client's first
    body, with the features of the initial model. In the released code all clients of a cohort align
    the same body one after another; here each client aligns the body that the server sent.
    The released code takes the samples in a fixed order and leaves out an incomplete last batch;
    here the order is random, and all samples count.

    In the alignment the model is in eval mode, and the data are not augmented. The alignment
    happens before local training, and with every ``engine`` one client at a time.

    Args:
        align_epochs: epochs of the alignment.
        align_lr: learning rate of the alignment, which is SGD without momentum and weight decay.
        align_batch_size: samples in a step of the alignment.
        global_model: whether a global model is evaluated; see ``FedPer``.
    """

    traits = frozenset({MOVES_START})
    takes_only_merged = True
    takes_tokens = False

    def __init__(
        self,
        align_epochs: PositiveInt,
        align_lr: PositiveFloat,
        align_batch_size: PositiveInt,
        global_model: GlobalModel,
    ) -> None:
        super().__init__(global_model)
        self.align_epochs, self.align_lr = align_epochs, align_lr
        self.align_batch_size = align_batch_size

    def setup(self, setting: Setting) -> None:
        """Store the names of the body's parameters."""
        self._seed, self._num_classes = setting.seed, setting.num_classes
        self._body = [n for n in setting.model.parameters if n.startswith("backbone.")]

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Align the received body, if the client has class means of previous features."""
        if memory and self._body:
            client.load(self._aligned(client, memory["means"], memory["holds"]))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Store the class means [C, d] of the trained model's features. Nothing is sent."""
        means, counts = class_prototypes(*client.features(), self._num_classes)
        memory.update(means=means, holds=counts > 0)
        return {}

    def _aligned(self, client: Client, means: Tensor, holds: Tensor) -> Tensors:
        """The body's parameters after the alignment."""
        body = {name: client.weights[name].detach().clone() for name in self._body}

        def loss(body: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
            own = {name.removeprefix("backbone."): value for name, value in body.items()}
            z = at_least_float32(call_in_eval_mode(client.backbone, own, inputs))
            return distance_from_means(z, labels, means, holds)

        for positions in self._batches(client):
            inputs, labels = client.data.inputs(positions), client.data.labels[positions]
            gradients: Tensors = grad(loss)(body, inputs, labels)
            body = {name: w - self.align_lr * gradients[name] for name, w in body.items()}
        return body

    def _batches(self, client: Client) -> Iterator[Tensor]:
        """Yield the positions of the samples of each step of the alignment."""
        draw = torch_generator(self._seed, "alignment", client.round, client.data.client)
        for _ in range(self.align_epochs):
            order = torch.randperm(client.data.num_samples, generator=draw)
            yield from torch.split(to_device(order, client.device), self.align_batch_size)


def distance_from_means(z: Tensor, labels: Tensor, means: Tensor, holds: Tensor) -> Tensor:
    """Compute how far features are from the means of their classes, a scalar.

    The result is a sum over the classes of the batch. The term of a class is the squared difference
    of z from the class mean, averaged over the samples of the class and over the d dimensions. A
    class without a mean has the term 0.

    Args:
        z: features [B, d].
        labels: [B].
        means: [C, d].
        holds: [C] bool, whether a class has a mean.
    """
    squares = (z - means[labels]).square().mean(dim=1)
    counts = torch.bincount(labels, minlength=len(means))
    return (squares * holds[labels] / counts[labels]).sum()
