"""FedAS: a private head, and a received body that first learns from the client's previous one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from fedexp.core.client_protocol import Client
from fedexp.core.forward import at_least_float32
from fedexp.core.functional import call_in_eval_mode
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import torch_generator
from fedexp.personalization.fedper import FedPer, GlobalModel


class FedAS(FedPer):
    """Parameter alignment (Yang et al., CVPR 2024); the head is private.

    Before local training the received body is aligned with the client's previous body: by SGD on
    the distance of its features from the class means of the previous features
    (``distance_from_means``). Then body and head are trained together. The previous features are
    the features of the client's training data under its latest local model. They stay with the
    client. A client without one, in its first round, does not align.

    The method's other half is ``aggregator=fisher_weighted``. Learning rate, epochs and batch size
    of the alignment are the released code's. That code also aligns a client's first body, with the
    features of the initial model, and all clients of a cohort align the same body in turn; here
    each client aligns the body that the server sent.

    The model is in eval mode and the data are not augmented. The alignment is not a part of local
    training: it takes one client at a time, in any engine.

    Args:
        align_epochs: epochs of the alignment.
        align_lr: its learning rate, without momentum and weight decay.
        align_batch_size: samples in a step of it.
        global_model: whether a global model is evaluated; see ``FedPer``.
    """

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
        """Remember the body's parameters."""
        self._seed, self._num_classes = setting.seed, setting.num_classes
        self._body = [n for n in setting.parameter_shapes if n.startswith("backbone.")]

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Align the received body."""
        if memory and self._body:
            client.load(self._aligned(client, memory["means"], memory["holds"]))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Keep the class means [C, d] of the trained model's features; nothing is sent."""
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
        """Positions of the samples in each step."""
        draw = torch_generator(self._seed, "alignment", client.round, client.data.client)
        for _ in range(self.align_epochs):
            order = torch.randperm(client.data.num_samples, generator=draw)
            yield from torch.split(order.to(client.device), self.align_batch_size)


def distance_from_means(z: Tensor, labels: Tensor, means: Tensor, holds: Tensor) -> Tensor:
    """The sum over the batch's classes of the mean squared difference of z from the class mean.

    Args:
        z: features [B, d].
        labels: [B].
        means: [C, d].
        holds: [C] bool, whether a class has a mean; the others count as 0.

    Returns:
        A scalar; the mean is over the samples of the class and over the d dimensions.
    """
    squares = (z - means[labels]).square().mean(dim=1)
    counts = torch.bincount(labels, minlength=len(means))
    return (squares * holds[labels] / counts[labels]).sum()
