"""APPLE: a client's model is a learned combination of the models of all clients."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Size, Tensor, nn

from fedexp.config.compatibility.traits import COMPARES_WITH_MODEL, READS_ROUNDS, REPLACES_MODEL
from fedexp.config.schema import Share
from fedexp.contract import Client, Loss, Memory, Network, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.transfer import to_device
from fedexp.errors import InputError
from fedexp.personalization.client_models import PAST_THE_AGGREGATOR, StoresModels
from fedexp.regularizers.anchors import Anchors
from fedexp.rounding import rounded_down

Decay = Literal["cosine", "exponential"]

_LAST = 1e-3
"""The number to which the exponential decay falls."""


class APPLE(StoresModels):
    """A client's model is $sum_j p_j w_j$, with a learned p (Luo & Wu, IJCAI 2022).

    w_j is the core model of client j. Client i gets the core models of all clients. In each local
    step it trains its own w_i and its vector p, whose gradients are p_i g and <g, w_j>; g is the
    gradient at the combination. It sends w_i to the server and keeps p. Initially all core models
    are the initial model, and p is p0, the clients' shares of all samples. The loss has the penalty
    $lambda(r) (mu / 2) ||p - p0||^2$. lambda falls from 1 in the first round to 0. So p first stays
    near FedAvg's weights, and then follows the client's own loss.

    w_i moves with p_i times the learning rate, about 1/N of it. So take a larger learning rate than
    for FedAvg. p has a learning rate of its own: it is stored as $p0 + sqrt(rate) q$, and the local
    optimizer trains q from 0. With SGD, with or without momentum, this is the same as training p
    with ``rate`` times the learning rate. Weight decay pulls p to p0.

    In the paper all clients train in all rounds. Here a client that has not trained yet has the
    aggregator's global weights as its core model. Clients without training data, such as those that
    are held out, have no core model: p_j stays 0. A client gets its own core model from
    the server, too. The limit on the core models that a client downloads is left out. Parameters
    are combined; running statistics are those of the combination, and start from the received ones.
    No global model is evaluated. What heads, samplers and aggregators compute outside of the
    training steps, such as the features for ``head=prototype``, is of w_i. In the released code
    core models start from different random weights, and the penalty has no factor 1/2. PFLlib
    multiplies the learning rate of w_i by N, and takes means over the elements of each layer in
    place of <g, w_j>. The paper's text was not compared.

    A client downloads a model of each client with data, and needs memory for N models while it
    trains. The server stores N models; models that exceed ``clients.ram_gib`` are on disk.

    Args:
        clients: N, the number of clients.
        rate: the learning rate of p, divided by the learning rate of the core models.
        mu: strength of the penalty in the first round.
        penalty_decay: how lambda falls over the first rounds. "cosine" is half a cosine from 1 to
            0. "exponential" falls to 0.001, and then to 0.
        penalty_rounds: the share of the rounds after which lambda is 0. A positive share is at
            least one round.
    """

    traits = frozenset({READS_ROUNDS, REPLACES_MODEL})
    private_names = ("personalization.",)
    has_global = False
    forbids = {
        **PAST_THE_AGGREGATOR,
        COMPARES_WITH_MODEL: "{other}: compares with outputs of the client's model outside of the "
        "training steps; with personalization=apple this is the core model and not the combination "
        "that trains; take another {other}",
    }
    unread_if = {
        "mu": {"rate": (0,), "penalty_rounds": (0,)},
        "penalty_decay": {"rate": (0,), "mu": (0,), "penalty_rounds": (0,)},
        "penalty_rounds": {"rate": (0,), "mu": (0,)},
    }
    first: Tensor
    itself: Tensor
    strength: Tensor

    def __init__(
        self,
        clients: PositiveInt,
        rate: NonNegativeFloat,
        mu: NonNegativeFloat,
        penalty_decay: Decay,
        penalty_rounds: Share,
    ) -> None:
        super().__init__()
        self.clients, self.scale, self.mu = clients, math.sqrt(rate), mu
        self.penalty_decay: Decay = penalty_decay
        self.penalty_rounds = penalty_rounds

    def create(self, network: Network, loss: Loss) -> None:
        """Make q [N], which is 0 at first."""
        self.q = nn.Parameter(torch.zeros(self.clients))

    def setup(self, setting: Setting) -> None:
        """Make the server's store, and buffers for what a client knows in a round."""
        count = setting.num_clients
        if self.clients != count:
            raise InputError(
                f"personalization.clients={self.clients}: must be clients.count={count}"
            )
        super().setup(setting)
        self._rounds = setting.rounds
        self._with_data: list[int] = setting.clients.sizes.nonzero().flatten().tolist()
        shapes = setting.model.shared_parameters
        self.others = Anchors({name: Size([count, *shape]) for name, shape in shapes.items()})
        shares = setting.clients.sizes / max(setting.clients.num_samples, 1)
        self.register_buffer("first", shares.float(), persistent=False)
        self.register_buffer("itself", torch.zeros(count), persistent=False)
        self.register_buffer("strength", torch.zeros(()), persistent=False)

    def _others_of(self, client: int) -> list[int]:
        """The other clients with data, whose core models the client gets."""
        return [other for other in self._with_data if other != client]

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the other clients' core models and lambda mu. A place without a model has zeros."""
        number = client.data.client
        self.itself.zero_()
        self.itself[number] = 1.0
        last = rounded_down(self.penalty_rounds, self._rounds)
        if self.penalty_rounds > 0:
            last = max(last, 1)
        decay = penalty_factor(message.round, last, self.penalty_decay)
        self.strength.fill_(self.mu * decay)
        places = to_device(torch.tensor(self._others_of(number)), client.device)
        for name in self.others:
            buffer = self.others[name].zero_()
            if name in message.extras:
                buffer[places] = to_device(message.extras[name], client.device)

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        """The combination of the core models."""
        p = self.first + self.scale * self.q
        return {
            name: p @ self.itself * parameters[name] + torch.tensordot(p, self.others[name], dims=1)
            for name in self.others
        }

    def term(self, batch: object) -> Tensor:
        """The penalty, a scalar."""
        return 0.5 * self.strength * (self.scale * self.q).square().sum()

    @torch.no_grad()
    def personal_weights(self, local: Tensors) -> Tensors:
        """The combination of the core models after training."""
        return self.step_weights(local, 0)

    # The server's half.

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the core models: the client's own one, and a stack of the others'."""
        own = self._core(client, message.weights)
        others = [self._core(other, message.weights) for other in self._others_of(client)]
        stacked = {
            name: torch.stack([core[name].to(message.weights[name]) for core in others])
            for name in (self.others if others else ())
        }
        weights = {name: own.get(name, w).to(w) for name, w in message.weights.items()}
        return replace(message, weights=weights, extras=stacked)

    def _core(self, client: int, weights: Tensors) -> Tensors:
        """The core model of a client: the global ``weights`` if it has not trained yet."""
        if client not in self._stored:
            return weights
        return self._stored[client]

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The parameters of the core model, for ``aggregate``."""
        return {name: weights[name] for name in self.others}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's core models."""
        for update in updates:
            self._stored[update.client] = {name: update.extras[name] for name in self.others}


def penalty_factor(round: int, last: int, decay: Decay) -> float:
    """lambda in a round, counted from 1; 0 after the round ``last``.

    It is $(1 + cos(pi r / L)) / 2$ or $0.001^(r / L)$, where r is ``round`` - 1 and L is ``last``.
    """
    if round > last:
        return 0.0
    passed = (round - 1) / last
    return (1 + math.cos(math.pi * passed)) / 2 if decay == "cosine" else _LAST**passed
