"""The base of personalizations that train the shared model and a client's own model together."""

import torch
from torch import Tensor, nn

from fedexp.config.compatibility.traits import BATCH_NORM, OWN_MODEL
from fedexp.contract import Client, Loss, Network, Personalization, Tensors
from fedexp.core.unit_distance import optimizer_of

_PREFIX = "personalization.own."


class OwnModel(Personalization):
    """Adds the client's own model: a private copy of each trained parameter of backbone and head.

    ``Personalization.personal_phases`` trains a separate model after the shared model. Here, in
    contrast, one step trains the shared model and the own model, on the same batch. The part in the
    gradient socket returns the gradients of both models, or the loss has terms for both models.
    """

    private_names = ("personalization.",)
    traits = frozenset({OWN_MODEL})
    forbids = {
        BATCH_NORM: "{other}: has the running statistics of the shared model, not of a client's "
        "own; use another model, or personalization=ditto"
    }

    def create(self, network: Network, loss: Loss) -> None:
        """Make the own model's parameters."""
        parameters = [
            *network.backbone.named_parameters(prefix="backbone"),
            *network.head.named_parameters(prefix="head"),
        ]
        self._names = [name for name, value in parameters if value.requires_grad]
        shapes = {name: value.shape for name, value in parameters if value.requires_grad}
        self.own = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        )

    def own_parameters(self) -> Tensors:
        """The own model's parameters, named like the shared model's parameters."""
        return {name: self.own[_key(name)] for name in self._names}

    def personal_weights(self, local: Tensors) -> Tensors:
        """The personal model: the own model."""
        return own_model(local)

    def start_from(self, client: Client, weights: Tensors) -> None:
        """Set the own model to these weights. Weights that the own model lacks are ignored."""
        client.load({own_name(name): weights[name] for name in self._names})


def own_name(name: str) -> str:
    """Turn the name of a shared parameter into the name of its copy in the own model."""
    return _PREFIX + _key(name)


def own_model(weights: Tensors) -> Tensors:
    """Get the own model's parameters in ``weights``, named like the shared model's parameters.

    ``weights`` must hold the parameters of both models.
    """
    return {name: weights[own] for name in weights if (own := own_name(name)) in weights}


def mixture(weights: Tensors, alpha: Tensor) -> Tensors:
    """The mixture alpha v + (1 - alpha) w of the own model v and the shared model w.

    ``weights`` holds the parameters of both models.
    """
    own = own_model(weights)
    return {name: alpha * v + (1 - alpha) * weights[name] for name, v in own.items()}


def as_own(tensors: Tensors) -> Tensors:
    """Rename each tensor from ``name``, the name of a shared parameter, to ``own_name(name)``."""
    return {own_name(name): value for name, value in tensors.items()}


def rate_of_round(client: Client) -> float:
    """The learning rate of the client's local steps in this round."""
    rate: float = optimizer_of(client).param_groups[0]["lr"]
    return rate


def _key(name: str) -> str:
    return name.replace(".", "/")
