"""A recurrent network for next-character prediction, and an LSTM that every engine can run."""

from collections.abc import Iterator
from math import sqrt

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.unread import declares_unread
from fedexp.core.forward import full_precision
from fedexp.models.layers import Projection, project


class LSTM(nn.Module):
    """LSTM layers whose parameters are named and initially drawn as those of ``torch.nn.LSTM``.

    ``forward`` returns the last layer's hidden state after the last step, or after each step.

    By default the module uses PyTorch's fused kernel (oneDNN on some CPUs, cuDNN on a GPU), which
    supports neither ``torch.func.vmap`` nor second derivatives. If the attribute ``fused`` is
    false, the module computes the states by matrix products, step by step. Training on one CPU core
    then took 1.04 to 4.5 times as long. (This was measured with hidden sizes 64 and 256, batches of
    10 to 100 and 80 steps, on a machine under load.)

    Args:
        inputs: width of a step's input.
        hidden: width of the hidden state of each layer.
        layers: number of layers, at least one.
        each_step: whether to return the state after each step.
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
        """Map ``steps`` [B, L, inputs] to [B, hidden], or to [B, L, hidden] with ``each_step``."""
        if not self.fused:
            for layer in self._parameters_of_layers():
                steps = _layer(steps, *layer)
            return steps if self.each_step else steps[:, -1]
        # len(steps) would fix the batch size in an exported model.
        start = steps.new_zeros(self.layers, steps.shape[0], self.hidden)
        flat = [value for layer in self._parameters_of_layers() for value in layer]
        # cuDNN computes gradients in training mode only. Without dropout both modes are equal.
        has_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (steps, *flat))
        # The options are: with biases, number of layers, dropout probability, training mode,
        # bidirectional, batch first.
        options = (True, self.layers, 0.0, self.training or has_gradient, False, True)
        if steps.device.type == "cpu":  # some CPUs have no fused kernel in 16 bits
            with full_precision(steps):
                outputs = torch.lstm(steps.float(), (start.float(), start.float()), flat, *options)
        else:
            outputs = torch.lstm(steps, (start, start), flat, *options)
        return outputs[0] if self.each_step else outputs[1][-1]

    def prepare_for_vmap(self) -> None:
        """Turn off the fused kernel; ``engine=vectorized`` calls this."""
        self.fused = False

    def _parameters_of_layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        # Find the parameters by name at each call, because engines replace them by other tensors.
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                getattr(self, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            yield weight_ih, weight_hh, bias_ih, bias_hh


def _layer(
    steps: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """The hidden states [B, L, H] of one layer after each step of ``steps`` [B, L, inputs].

    The weights and biases have H rows for each of the four gates: input, forget, cell and output.
    """
    from_inputs = F.linear(steps, weight_ih, bias_ih + bias_hh)
    hidden = cell = steps.new_zeros(len(steps), weight_hh.shape[1])
    states = []
    for from_input in from_inputs.unbind(dim=1):
        i, f, g, o = (from_input + F.linear(hidden, weight_hh)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states, dim=1)


class CharLSTM(nn.Module):
    """An embedding and an LSTM; z is the LSTM's state after the last token, or after each token.

    Args:
        vocabulary: number of different tokens.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM.
        layers: number of LSTM layers.
        per_token: whether to return the state after each token.
    """

    def __init__(
        self, vocabulary: int, embedding_dim: int, hidden: int, layers: int, per_token: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        self.lstm = LSTM(embedding_dim, hidden, layers, each_step=per_token)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``tokens`` [B, L] int64 to z [B, hidden], or to [B, L, hidden] with ``per_token``."""
        z: Tensor = self.lstm(self.embedding(tokens))
        return z


@declares_unread({"projection": {"feature_dim": (None,)}})
def char_lstm(
    input_shape: tuple[int, ...],
    vocabulary: int,
    embedding_dim: PositiveInt,
    hidden: PositiveInt,
    layers: PositiveInt,
    feature_dim: PositiveInt | None,
    projection: Projection,
    per_token: bool = False,
) -> nn.Module:
    """LEAF's network for Shakespeare (Caldas et al., 2018): an embedding and LSTM layers.

    FedGELA (Fan et al., NeurIPS 2023, Table 11) adds Linear-ReLU-Linear layers of width 256. Set
    ``feature_dim=256`` and ``projection="mlp"`` for these layers.

    Args:
        input_shape: [length] of the sequences; any length fits.
        vocabulary: number of different tokens; set by the dataset.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM, and of the features without a projection.
        layers: number of LSTM layers.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.
        per_token: whether to return features of each token; set by the dataset.
    """
    network = CharLSTM(vocabulary, embedding_dim, hidden, layers, per_token)
    return project(network, hidden, feature_dim, projection)
