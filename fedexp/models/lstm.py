"""Long short-term memory that every engine can run."""

from collections.abc import Iterator
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LSTM(nn.Module):
    """Layers of LSTM with the parameters, their names and their initial law of ``torch.nn.LSTM``.

    ``forward`` gives the last layer's hidden state after the last step, or after each one.

    It computes with PyTorch's fused kernel (oneDNN's on some CPUs, cuDNN's on a GPU), which
    ``torch.func.vmap`` and second derivatives cannot use; with ``fused`` false it computes the same
    with matrix products, step by step. These took 1.04 to 4.5 times as long in training on one CPU
    core (hidden sizes 64 and 256, batches of 10 to 100, 80 steps, a machine under load).

    Args:
        inputs: width of a step's input.
        hidden: width of the hidden state of each layer.
        layers: how many, at least one.
        each_step: whether the state after each step is wanted.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, each_step: bool = False) -> None:
        super().__init__()
        self.hidden, self.layers, self.fused, self.each_step = hidden, layers, True, each_step
        for layer in range(layers):
            width = hidden if layer else inputs
            for name, shape in {
                f"weight_ih_l{layer}": (4 * hidden, width),
                f"weight_hh_l{layer}": (4 * hidden, hidden),
                f"bias_ih_l{layer}": (4 * hidden,),
                f"bias_hh_l{layer}": (4 * hidden,),
            }.items():
                bound = 1 / sqrt(hidden)
                value = torch.empty(shape).uniform_(-bound, bound)
                self.register_parameter(name, nn.Parameter(value))

    def forward(self, steps: Tensor) -> Tensor:
        """[B, hidden] for ``steps`` [B, L, inputs]; [B, L, hidden] with ``each_step``."""
        if not self.fused:
            for layer in self._parameters_of_layers():
                steps = _layer(steps, *layer)
            return steps if self.each_step else steps[:, -1]
        start = steps.new_zeros(self.layers, len(steps), self.hidden)
        flat = [value for layer in self._parameters_of_layers() for value in layer]
        # Biases, layers, no dropout, training, one direction, batch first.
        state = (start, start)
        outputs = torch.lstm(steps, state, flat, True, self.layers, 0.0, self.training, False, True)
        return outputs[0] if self.each_step else outputs[1][-1]

    def prepare_for_vmap(self) -> None:
        """Switch the fused kernel off; ``engine=vectorized`` calls this."""
        self.fused = False

    def _parameters_of_layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        # By name at each call: engines put other tensors in the place of the parameters.
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                getattr(self, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            yield weight_ih, weight_hh, bias_ih, bias_hh


def _layer(
    steps: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Hidden states [B, L, H] of one layer after each of ``steps`` [B, L, inputs].

    The rows of weights and biases are those of the input, forget, cell and output gate, H each.
    """
    driven = F.linear(steps, weight_ih, bias_ih + bias_hh)
    hidden = cell = steps.new_zeros(len(steps), weight_hh.shape[1])
    states = []
    for drive in driven.unbind(dim=1):
        i, f, g, o = (drive + F.linear(hidden, weight_hh)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states, dim=1)
