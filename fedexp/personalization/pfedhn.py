"""pFedHN: a network at the server makes each client's model from the client's embedding."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.traits import REPLACES_MODEL
from fedexp.contract import PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.randomness import seeded
from fedexp.models.layers import dense
from fedexp.personalization.client_models import PAST_THE_AGGREGATOR
from fedexp.personalization.received import Received
from fedexp.personalization.server_network import ServerNetwork


class ModelMaker(nn.Module):
    """The hypernetwork h(v_i; phi): turns the embedding v_i of a client into its model.

    A fully connected body is followed by one linear layer, whose outputs are all parameters of the
    model. This is the same as one linear layer for each tensor.

    Args:
        clients: N, the number of embeddings. They are standard normal at first.
        widths: width of an embedding, then of each layer of the body.
        shapes: name -> shape of each parameter of the model.
    """

    def __init__(
        self, clients: int, widths: Sequence[int], shapes: Mapping[str, torch.Size]
    ) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        self.embeddings = nn.Parameter(torch.randn(clients, widths[0]))
        self.body = dense(widths)[:-1]  # without the last ReLU
        self.last = nn.Linear(widths[-1], sum(shape.numel() for shape in shapes.values()))

    def forward(self, client: int) -> Tensors:
        """The client's model: name -> parameter."""
        values = self.last(self.body(self.embeddings[client]))
        parts = values.split([shape.numel() for shape in self.shapes.values()])
        return {n: part.view(self.shapes[n]) for n, part in zip(self.shapes, parts, strict=True)}


class PFedHN(Received):
    """The server makes each client's model by a hypernetwork (Shamsian et al., ICML 2021).

    The server sends client i the model $theta_i = h(v_i; phi)$. h is a network with the parameters
    phi, and v_i is the embedding of the client; both are trained, and stay at the server. The
    client trains theta_i, and sends the result theta~_i as in FedAvg. With the change
    $D = theta_i - theta~_i$ the server takes a step of SGD, whose gradients are

        $(d theta_i / d phi)^T D$ for phi and $(d theta_i / d v_i)^T D$ for v_i.

    In the paper one client trains in a round. Here the step has the mean of the cohort's gradients,
    in which all clients have the same weight. Momentum and weight decay act on all embeddings in
    every step, as in the authors' code.

    The personal model is the model that the server makes, without local training, as in the paper.
    All trained parameters that are shared are made. Buffers come from the aggregator's global
    model, which has no other use and is not evaluated. At first all parameters of a made model have
    about the same size, whatever their layer, as in the authors' code. So the scales of
    normalization layers start near 0. The variant pFedHN-PC, with private heads, is not
    implemented. The server stores the hypernetwork and its momentum, each about ``hidden_dim``
    times as large as the model.

    Args:
        embedding_dim: width of an embedding; None: 1 + N / 4, rounded down.
        hidden_dim: width of the hypernetwork's layers.
        hidden_layers: number of its layers after the first one, without the output layer.
        lr: the server's learning rate.
        momentum: the server's momentum.
        weight_decay: L2 penalty on phi and the embeddings.
        clip: the largest norm of a step's gradient.
    """

    has_global = False
    traits = frozenset({REPLACES_MODEL})
    forbids = PAST_THE_AGGREGATOR
    serves_newcomers = False  # no update has trained their embeddings

    def __init__(
        self,
        embedding_dim: PositiveInt | None,
        hidden_dim: PositiveInt,
        hidden_layers: NonNegativeInt,
        lr: PositiveFloat,
        momentum: Annotated[float, Field(ge=0, lt=1)],
        weight_decay: NonNegativeFloat,
        clip: PositiveFloat,
    ) -> None:
        super().__init__()
        self.embedding_dim, self.body = embedding_dim, [hidden_dim] * (1 + hidden_layers)
        self.sgd = (lr, momentum, weight_decay, clip)

    def setup(self, setting: Setting) -> None:
        """Make the hypernetwork."""
        shapes = setting.model.parameters
        made = {name: shapes[name] for name in sorted(setting.model.shared_parameters)}
        width = self.embedding_dim or 1 + setting.num_clients // 4
        with seeded(setting.seed, "hypernetwork"):
            network = ModelMaker(setting.num_clients, [width, *self.body], made)
        self._names, self._network = list(made), ServerNetwork(network, *self.sgd)

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the model that the hypernetwork makes for the client."""
        made = self._made(client, next(iter(message.weights.values())))
        weights = message.weights | {n: w.to(message.weights[n]) for n, w in made.items()}
        return replace(message, weights=weights)

    @torch.no_grad()
    def _made(self, client: int, like: Tensor) -> Tensors:
        """The client's model, made on the device of ``like``."""
        self._network.to(like.device)
        made: Tensors = self._network.network(client)
        return made

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The parameters of the trained model theta~_i, for ``aggregate``."""
        return {name: weights[name] for name in self._names}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Train the hypernetwork and the embeddings by one step."""
        outputs, gradients = [], []
        for update in updates:
            for name, value in self._network.network(update.client).items():
                outputs.append(value)
                gradients.append((value.detach() - update.extras[name]) / len(updates))
        self._network.descend(outputs, gradients)

    def server_state(self) -> dict[str, Any]:
        """The hypernetwork, the embeddings and the optimizer's state."""
        return self._network.state_dict()

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._network.load_state_dict(state)
