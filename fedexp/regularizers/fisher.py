"""The diagonal of a client's empirical Fisher information."""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedexp.contract import Client, Tensors
from fedexp.regularizers.anchors import combine

_Gradient = Callable[[Tensors, Tensor, Tensor], Tensors]
"""A function (weights, input, label) -> (name -> gradient) for one sample."""


def diagonal_fisher(client: Client, weights: Tensors, batch_size: int) -> Tensors:
    """The diagonal empirical Fisher information of a client's model on its training samples.

    It is the elementwise mean of (d log p(y | x) / d w)^2 over the samples. x is the sample's
    input, y its label, and p the softmax of the model's logits. The gradient of each sample is
    squared before the mean. The model is in eval mode: BatchNorm uses its running statistics, and
    dropout is off. Inputs are not augmented.

    ``torch.func.vmap`` computes the gradients of many samples together. It runs layers that it
    cannot batch, such as PyTorch's LSTM on a CPU, sample by sample. If vmap cannot run the model at
    all, for example because of a branch that depends on values, all gradients are computed sample
    by sample.

    Args:
        client: the client whose model and data are used.
        weights: the parameters w.
        batch_size: number of samples whose gradients are in memory together.

    Returns:
        Name of a parameter -> the diagonal for this parameter, a tensor of its shape.
    """

    def likelihood(weights: Tensors, x: Tensor, y: Tensor) -> Tensor:
        """The loss -log p(y | x) of one sample with the input x and the label y."""
        logits = client.logits_with(weights, x.unsqueeze(0))
        return F.cross_entropy(logits, y.unsqueeze(0))

    gradient: _Gradient = grad(likelihood)
    sums: Tensors = {}
    with torch.no_grad(), warnings.catch_warnings():  # ``grad`` works under no_grad, too
        warnings.filterwarnings("ignore", "There is a performance drop")
        for inputs, targets in client.data.batches(batch_size):
            each = _gradients(gradient, weights, inputs, targets)
            sums = combine(sums, {name: g.square().sum(dim=0) for name, g in each.items()})
    return {name: value / client.data.num_samples for name, value in sums.items()}


def _gradients(gradient: _Gradient, weights: Tensors, inputs: Tensor, targets: Tensor) -> Tensors:
    """A gradient for each of the B samples of a batch: name -> [B, *shape of the parameter]."""
    try:
        stacked: Tensors = vmap(gradient, in_dims=(None, 0, 0))(weights, inputs, targets)
    except RuntimeError:
        rows = [gradient(weights, x, y) for x, y in zip(inputs, targets, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in weights}
    return stacked
