"""FedPHP: a client's personal model is a moving mean of its local models."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexp.config.compatibility.traits import DERIVES_CLASSIFIER, INHERITED_MODEL, READS_ROUNDS
from fedexp.contract import Client, Loss, Memory, Network, Personalization, Setting, Tensors
from fedexp.personalization.own_model import own_model, own_name

_TURNS = "personalization.turns"


class FedPHP(Personalization):
    """Each client keeps a private model p, a mean of its past models (Li et al., ECML 2021).

    After the local training of a client its private model is $p <- mu p + (1 - mu) w$, where w is
    the trained model. So what the client has learned is not lost when it gets the next global
    model. $mu = momentum * Z / max(q T, 1)$, but at most ``momentum``: Z is the number of the
    client's earlier turns, q the share of the clients with data whose updates a server step takes,
    and T the number of rounds; q T is rounded down. In the first turn p becomes w. p is the
    personal model, and it is never sent.

    The method's other half is ``loss=inherited``, with which the client learns from p. Without it
    local training and the global model are FedAvg's. Float buffers are averaged like weights;
    integer buffers are those of w.

    Args:
        momentum: the value of mu after q T turns.
    """

    private_names = ("personalization.",)
    takes_only_merged = True
    traits = frozenset({INHERITED_MODEL, READS_ROUNDS})
    forbids = {
        DERIVES_CLASSIFIER: "{other}: computes its classifier from class means, which do not fit "
        "the mean of a client's past models; with personalization=fedphp take another {other}"
    }

    def __init__(self, momentum: Annotated[float, Field(ge=0, lt=1)]) -> None:
        super().__init__()
        self.momentum = momentum

    def create(self, network: Network, loss: Loss) -> None:
        """Make a buffer for each weight of the private model, and one for the turns Z."""
        self.register_buffer("turns", torch.zeros(()))
        self.own = nn.Module()
        derived = {f"head.{name}" for name in network.head.derived}
        for part, module in (("backbone", network.backbone), ("head", network.head)):
            for key, value in module.state_dict(keep_vars=True).items():
                name = f"{part}.{key}"
                is_fixed = isinstance(value, nn.Parameter) and not value.requires_grad
                if name not in derived and not is_fixed:
                    empty = torch.zeros(value.shape, dtype=value.dtype)
                    self.own.register_buffer(name.replace(".", "/"), empty)

    def setup(self, setting: Setting) -> None:
        """Compute the expected number of a client's turns, q T."""
        clients = max(setting.clients.num_with_data, 1)  # 0 in an exported model
        turns = setting.most_updates * setting.rounds // clients
        self._expected_turns = max(turns, 1)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Update the private model. Nothing is sent."""
        weights = client.weights
        turns = weights[_TURNS]
        mu = self.momentum * (turns / self._expected_turns).clamp(max=1)
        client.load(
            {_TURNS: turns + 1}
            | {
                own_name(name): moved(p, weights[name], mu)
                for name, p in own_model(weights).items()
            }
        )
        return {}

    def personal_weights(self, local: Tensors) -> Tensors:
        """The personal model: the private model p."""
        return own_model(local)


def inherited_model(weights: Tensors) -> Tensors:
    """The private model p of a client; before its first turn has ended, its shared model."""
    began = weights[_TURNS] > 0
    return {n: torch.where(began, p, weights[n]) for n, p in own_model(weights).items()}


def moved(private: Tensor, trained: Tensor, mu: Tensor) -> Tensor:
    """One weight of the private model after the update: mu p + (1 - mu) w, or w for integers."""
    return mu * private + (1 - mu) * trained if trained.is_floating_point() else trained
