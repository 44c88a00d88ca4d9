"""FedFomo: each client mixes others' models into its own if they do well on its validation data."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import DIFFERENT_NETWORKS, MOVES_START
from fedexp.config.schema import Share
from fedexp.contract import (
    Client,
    LocalData,
    Loss,
    Memory,
    Network,
    PartMessage,
    PartUpdate,
    Setting,
    Tensors,
)
from fedexp.core.named_tensors import floats, prefixed, with_prefix
from fedexp.core.own_validation import MAY_KNOW_VALIDATION, own_validation, validation_samples
from fedexp.core.randomness import numpy_generator
from fedexp.core.transfer import to_device
from fedexp.personalization.local import Local
from fedexp.personalization.mean_loss import ONE_CLASSIFIER, mean_loss

_BEGAN = "began"
"""Prefix of the weights of b_i in the client's memory."""


class FedFomo(Local):
    """Each client starts from its own weighted combination of models (Zhang et al., ICLR 2021).

    Client i keeps its trained model theta_i, and the model b_i with which the training of theta_i
    began. The server sends it up to ``models`` models theta_n of other clients. The client computes
    the mean cross-entropy L_i of each model on its validation samples, and from it the weight w_n
    of each model, its own theta_i included:

        $w_n = (L_i(b_i) - L_i(theta_n)) / ||theta_n - b_i||$

    The norm is over trained parameters. Local training starts from the mixture
    $b_i + sum_n a_n (theta_n - b_i)$ with $a_n = max(w_n, 0) / sum_m max(w_m, 0)$. If no weight is
    positive, it starts from b_i. In a client's first turn b_i and theta_i are the initial model.
    Then the client trains on its other samples and sends its new model and the weights of the other
    clients' models. The new model is its personal model.

    The server has the models that it got in the last round, and an affinity of each client i to
    each client n: the sum of all w_n that client i has sent, 0 at first. One after another it
    chooses the models for client i: each time with probability epsilon one of the remaining models
    at random, else the remaining model with the largest affinity.

    A client's validation samples are the same in all rounds. They are not those of
    ``data.validation``, on which hyper-parameters are chosen. The authors score a client's model
    after the mixing, before local training; here it is scored after local training. Their code
    divides the w_n by the absolute value of their sum before it adds them to the affinity; here
    they are added as they are. It divides the gain by the 1-norm; here it is the 2-norm. FL-bench
    takes theta_i in place of b_i, and so drops theta_i if one other model is better.

    Args:
        models: the largest number of other clients' models that a client gets in a round.
        epsilon: probability that a model is chosen at random, in round 1.
        epsilon_decay: this number is subtracted from epsilon in every round, until epsilon is 0.
        validation: the share of a client's training samples that are its validation samples. Their
            number is rounded down, but is at least one if the client has two samples.
    """

    traits = Local.traits | {MOVES_START}
    forbids = ONE_CLASSIFIER | {
        DIFFERENT_NETWORKS: "personalization=fedfomo: mixes the clients' models, so {other} cannot "
        "give clients different networks; take another personalization"
    }
    discourages = MAY_KNOW_VALIDATION
    unread_if = {"epsilon_decay": {"epsilon": (0,)}}
    saved = ("models", "affinity")

    def __init__(
        self,
        models: PositiveInt,
        epsilon: Share,
        epsilon_decay: NonNegativeFloat,
        validation: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        super().__init__()
        self.most_models, self.validation = models, validation
        self.epsilon, self.epsilon_decay = epsilon, epsilon_decay
        self.models: dict[int, Tensors] = {}
        self.affinity: dict[int, dict[int, float]] = {}

    def create(self, network: Network, loss: Loss) -> None:
        """Store the names of the head's buffers that are never sent."""
        self._derived = {f"head.{name}" for name in network.head.derived}

    def setup(self, setting: Setting) -> None:
        """Store the seed and the names of the trained parameters."""
        self._seed, self._trained = setting.seed, sorted(setting.model.parameters)

    # The server's half.

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """Other clients' models, and the numbers of these clients."""
        chosen = self._chosen(client, message.round)
        extras = {"clients": torch.tensor(chosen)} if chosen else {}
        for other in chosen:
            extras |= prefixed(str(other), self.models[other])
        return extras

    def _chosen(self, client: int, round: int) -> list[int]:
        """The clients whose models this client gets. Ties in the affinity are broken at random."""
        draws = numpy_generator(self._seed, "models of others", round, client)
        own = self.affinity.get(client, {})
        remaining = draws.permutation(sorted(self.models.keys() - {client})).tolist()
        remaining.sort(key=lambda other: -own.get(other, 0.0))
        epsilon, chosen = self.epsilon - (round - 1) * self.epsilon_decay, []
        for _ in range(min(self.most_models, len(remaining))):
            place = draws.integers(len(remaining)) if draws.random() < epsilon else 0
            chosen.append(remaining.pop(place))
        return chosen

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models in place of the last ones; add to the affinities."""
        self.models = {update.client: with_prefix("model", update.extras) for update in updates}
        for update in updates:
            if "clients" not in update.extras:
                continue
            row = dict(self.affinity.get(update.client, {}))
            others, weights = update.extras["clients"].tolist(), update.extras["weights"].tolist()
            for other, weight in zip(others, weights, strict=True):
                row[other] = row.get(other, 0.0) + weight
            self.affinity = self.affinity | {update.client: row}

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Load the mixture of the models, and take the validation samples out of training."""
        held_out, trained = own_validation(client, self._seed, self.validation)
        start = own = {name: w.clone() for name, w in floats(self._sent(client)).items()}
        if len(held_out):
            began = with_prefix(_BEGAN, memory) or own
            others = message.extras.get("clients", torch.tensor([])).tolist()
            models = [own, *(self._received(message, n, own) for n in others)]
            weights, start = self._mix(client, client.data.subset(held_out), began, models)
            client.load(start)
            if others:
                memory["clients"] = to_device(message.extras["clients"], client.device)
                memory["weights"] = weights[1:]
        memory.update(prefixed(_BEGAN, start))
        client.train_on(client.data.subset(trained))

    def trained_samples(self, num_samples: int) -> int:
        """The number of the client's samples without its validation samples."""
        return num_samples - validation_samples(num_samples, self.validation)

    def _mix(
        self, client: Client, data: LocalData, began: Tensors, models: Sequence[Tensors]
    ) -> tuple[Tensor, Tensors]:
        """The weights w_n of the models, [m], and the mixture that starts from ``began``."""
        losses = [mean_loss(client, data, each) for each in (began, *models)]
        steps = [{name: each[name] - began[name] for name in each} for each in models]
        distances = [_norm([step[n] for n in self._trained]) for step in steps]
        weights = fomo_weights(losses[0], torch.stack(losses[1:]), torch.stack(distances))
        return weights, _mixture(began, steps, shares(weights))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The trained model; the numbers of the clients whose models came, and their weights w_n.

        The numbers [m] are int64 and the weights [m] float32.
        """
        model = {name: weight.clone() for name, weight in self._sent(client).items()}
        weights = {name: memory.pop(name) for name in ("clients", "weights") if name in memory}
        return prefixed("model", model) | weights

    def _sent(self, client: Client) -> Tensors:
        """The weights of a model that clients send."""
        return {name: w for name, w in client.weights.items() if name not in self._derived}

    def _received(self, message: PartMessage, number: int, own: Tensors) -> Tensors:
        """The float weights of the model of client ``number``, on the device of ``own``."""
        model = with_prefix(str(number), message.extras)
        return {n: to_device(w, own[n].device) for n, w in floats(model).items()}


def fomo_weights(start_loss: Tensor, losses: Tensor, distances: Tensor) -> Tensor:
    """The weights w_n of m models, [m].

    A model at distance 0 has the weight 0, and so has a model whose loss is not finite.

    Args:
        start_loss: the loss of the model b_i, a scalar.
        losses: the losses of the models, [m].
        distances: their distances from b_i, [m].
    """
    weights = (start_loss - losses) / distances
    return weights.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def shares(weights: Tensor) -> Tensor:
    """The shares a_n of the models in the mixture, [m]; 0 if no weight is positive."""
    positive = weights.clamp(min=0)
    return (positive / positive.sum()).nan_to_num(nan=0.0)


def _mixture(began: Tensors, steps: Sequence[Tensors], shares: Tensor) -> Tensors:
    """The model b_i plus the steps to the models times their shares."""
    return {
        name: began[name]
        + torch.stack([a * step[name] for a, step in zip(shares, steps, strict=True)]).sum(0)
        for name in steps[0]
    }


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all tensors together, a scalar."""
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
