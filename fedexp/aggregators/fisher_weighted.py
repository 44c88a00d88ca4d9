"""FedAS's average: a client's weight is the trace of its model's Fisher information."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor
from torch.func import grad

from fedexp.aggregators.average import Average
from fedexp.config.compatibility.traits import NOT_THE_MEAN
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.errors import InputError
from fedexp.regularizers.fisher import diagonal_fisher

_NUMBERS = 2**25
"""Largest number of gradient entries that are computed at a time: 128 MiB in float32."""


class FisherWeighted(Average):
    """The average of the clients' models, weighted by the trace of their Fisher information.

    The next global weights are $w = sum_k tr(F_k) w_k / sum_k tr(F_k)$, with client k's trained
    weights w_k (FedAS; Yang et al., CVPR 2024). F_k is the Fisher information of client k's trained
    model on the client's data. F_k is the mean of $g g^T$ over the samples x with their labels y,
    where g is the gradient of $log p(y | x)$ with respect to all trained parameters, including
    private ones. So $tr(F_k)$ is the mean of $||g||^2$. The model is in eval mode.

    A client sends one number, $tr(F_k)$. If $tr(F_k)$ is 0, the client sends the smallest positive
    number.

    Args:
        gradients: ``sample`` computes tr(F_k) as above, on data without augmentation. ``batch``
            follows the released code: for each (augmented) batch of the first local epoch it
            computes the gradient of the mean loss. In place of tr(F_k) the client then sends the
            sum of the squared norms of these gradients. This sum grows with the number of batches.
            The sum is smaller if the samples of a batch have different gradients. The released
            code leaves out an incomplete last batch; here all batches count.
        batch_size: samples in a batch, if ``gradients`` is ``batch``.
    """

    unread_if = {"batch_size": {"gradients": ("sample",)}}

    takes_tokens = False
    traits = frozenset({NOT_THE_MEAN})

    def __init__(self, gradients: Literal["sample", "batch"], batch_size: PositiveInt) -> None:
        super().__init__("uniform")
        self.gradients, self.batch_size = gradients, batch_size

    def setup(self, setting: Setting) -> None:
        """Store the parameters' names, and how many samples' gradients are computed at a time."""
        self._names = sorted(setting.model.parameters)
        numbers = sum(shape.numel() for shape in setting.model.parameters.values())
        self._chunk = max(1, min(1000, _NUMBERS // max(1, numbers)))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """With ``gradients=sample``, prepare the layers for the gradients of single samples.

        The preparation may change the rounding of a layer's results. It comes before training, so
        that the rounding is the same in every round.

        Raises:
            InputError: a layer cannot be prepared.
        """
        for layer in client.backbone.modules() if self.gradients == "sample" else ():
            if prepare := getattr(layer, "prepare_for_vmap", None):
                try:
                    prepare()
                except InputError as error:
                    raise InputError(
                        "aggregator.gradients=sample: the gradients of single samples cannot be "
                        "stacked for this model; use aggregator.gradients=batch, or for model=hf "
                        "model.pad_token=null"
                    ) from error

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The trace tr(F_k) of the client's Fisher information, a scalar."""
        weights = {name: client.weights[name].detach() for name in self._names}
        if self.gradients == "batch":
            batches = client.data.local_batches(client.round, self.batch_size)
            squares = [squared_gradient(client, weights, *batch) for batch in batches]
        else:
            fisher = diagonal_fisher(client, weights, self._chunk)
            squares = [value.double().sum() for value in fisher.values()]
        trace = torch.stack(squares).sum().float()
        return {"fisher_trace": trace.clamp(min=torch.finfo(trace.dtype).tiny)}

    def factor(self, update: PartUpdate) -> float:
        """The update's weight: the client's Fisher trace tr(F_k) times how often it was drawn."""
        return update.draws * update.extras["fisher_trace"].item()


def squared_gradient(client: Client, weights: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
    """The squared norm of the gradient of a batch's mean loss -log p(y | x), a scalar.

    Args:
        client: the client whose model is used.
        weights: the parameters of this model.
        inputs: [B, ...], the B samples of the batch.
        labels: [B], the classes of the samples.
    """

    def loss(weights: Tensors) -> Tensor:
        return F.cross_entropy(client.logits_with(weights, inputs).float(), labels)

    gradients: Tensors = grad(loss)(weights)
    return torch.stack([g.square().sum() for g in gradients.values()]).sum()
