"""FedALA: each client starts from a learned mixture of the global and its last local model."""

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import MOVES_START, SENDS_KEPT
from fedexp.contract import Batch, Client, Loss, Memory, Network, Personalization, Setting
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

Percent = Annotated[float, Field(gt=0, le=100)]
Epochs = Annotated[int, Field(ge=1)]


class FedALA(Personalization):
    """Training starts from $local + W * (global - local)$ (Zhang et al., AAAI 2023, Alg. 1).

    This is a mixture of the client's last local model, local, and the global model, global. W has
    one number in [0, 1] for each parameter of the top layers; the lower layers start from the
    global model. W starts at 1 and stays at the client. From its second round on, the client learns
    W before its local training. A step is $W <- clip(W - rate * g * (global - local), 0, 1)$, where
    g is the gradient of the loss at the mixture on a batch. When W is learned for the first time,
    the client takes epochs until the loss settles. In later rounds it takes one epoch.

    W is learned on samples that are drawn anew in each round and are not augmented. Buffers come
    from the global model.

    In the released code all clients mix in every round, whether they are drawn or not, and a client
    is scored with the mixture, before local training. Here only drawn clients mix, and a client is
    scored with its last local model. To see whether the loss has settled, the released code looks
    at the loss of each epoch's last batch; here it is the mean loss of the epoch.

    Args:
        top: p, the number of layers with a W, counted from the output. A layer is a module that
            directly contains parameters.
        percent: s, the percentage of the client's training samples that W is learned on. Their
            number is rounded down, but is at least two (BatchNorm) if the client has two samples.
        rate: the step size for W.
        batch_size: largest number of samples in one step for W.
        window: number of most recent epochs whose losses show whether the loss has settled. The
            first comparison is one epoch later, as in the released code.
        tolerance: the loss has settled if its standard deviation over ``window`` epochs is below
            this number.
        max_epochs: largest number of epochs when W is learned for the first time.
    """

    traits = frozenset({MOVES_START, SENDS_KEPT})
    takes_only_merged = True
    takes_tokens = False

    def __init__(
        self,
        top: PositiveInt,
        percent: Percent,
        rate: PositiveFloat,
        batch_size: PositiveInt,
        window: Epochs,
        tolerance: NonNegativeFloat,
        max_epochs: Epochs,
    ) -> None:
        super().__init__()
        self.top, self.percent, self.rate, self.batch_size = top, percent, rate, batch_size
        self.window, self.tolerance, self.max_epochs = window, tolerance, max_epochs

    def create(self, network: Network, loss: Loss) -> None:
        """Find the parameters of the top layers. Raises InputError if ``top`` is too large."""
        layers = [
            [f"{name}.{key}" for key, value in own if value.requires_grad]
            for name, layer in network.layers()
            if (own := list(layer.named_parameters(recurse=False)))
        ]
        if self.top > len(layers):
            raise InputError(
                f"personalization.top={self.top}: the model has {len(layers)} layers with "
                "parameters; use fewer"
            )
        self._mixed = [name for names in layers[-self.top :] for name in names]

    def setup(self, setting: Setting) -> None:
        """Store the seed of the run."""
        self._seed = setting.seed

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """If the client has a local model, learn W, its mixing weights, and load the mixture."""
        local = with_prefix("local", memory)
        if not local:
            return
        apart = {name: message.weights[name] - local[name] for name in self._mixed}
        weights = with_prefix("weight", memory)
        learned = self._learn(client, local, apart, weights)
        memory.update(prefixed("weight", learned))
        client.load(_mixture(local, apart, learned))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Store the top layers after local training in the client's memory. Nothing is sent."""
        local = {name: client.weights[name].clone() for name in self._mixed}
        memory.update(prefixed("local", local))
        return {}

    def _learn(self, client: Client, local: Tensors, apart: Tensors, weights: Tensors) -> Tensors:
        """Learn W in this round and return it.

        Args:
            client: the client.
            local: the top layers of the client's last local model.
            apart: global - local, for the top layers.
            weights: W of the client's last round. It is empty if there is no W yet.
        """
        first = not weights
        learned = {name: torch.ones_like(value) for name, value in local.items()} | weights
        batches = list(self._batches(client))
        losses: list[float] = []
        for _ in range(self.max_epochs if first else 1):
            epoch: list[Tensor] = []
            for batch in batches:
                loss, g = client.batch_gradient(batch, _mixture(local, apart, learned))
                epoch.append(loss)
                learned = {
                    name: (w - self.rate * g[name] * apart[name]).clamp(0, 1)
                    for name, w in learned.items()
                }
            losses.append(torch.stack(epoch).mean().item())
            recent = torch.tensor(losses[-self.window :], dtype=torch.float64)
            is_settled = recent.std(correction=0) < self.tolerance
            if len(losses) > self.window and is_settled:
                break
        return learned

    def _batches(self, client: Client) -> Iterator[Batch]:
        """Draw this round's samples for learning W, the mixing weights; yield them in batches."""
        data = client.data
        least = min(2, data.num_samples)
        count = max(least, rounded_down(self.percent / 100, data.num_samples))
        draws = torch_generator(self._seed, "aggregation weights", client.round, data.client)
        drawn = to_device(torch.randperm(data.num_samples, generator=draws)[:count], client.device)
        # All batches have nearly one size: a last batch of one sample would be too small for
        # BatchNorm.
        for positions in torch.tensor_split(drawn, math.ceil(count / self.batch_size)):
            yield data.inputs(positions), data.labels[positions]


def _mixture(local: Tensors, apart: Tensors, weights: Tensors) -> Tensors:
    """The mixture local + W * (global - local) of two models, with the mixing weights W.

    ``apart`` is the difference global - local.
    """
    return {name: local[name] + w * apart[name] for name, w in weights.items()}
