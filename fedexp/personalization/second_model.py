"""A client's own model that the loss trains together with the shared model, as in FML and FedKD."""

import torch

from fedexp.config.compatibility.traits import MUTUAL, SECOND_MODEL
from fedexp.contract import Setting
from fedexp.personalization.own_model import OwnModel

_NUMBER = 1
"""The number of the initial model for the clients' own models; number 0 is no drawn model."""


class SecondModel(OwnModel):
    """The personal model is a second model of the client, which is never sent.

    It has the layers of the shared model. A step trains both models with a loss that compares their
    outputs, such as ``loss=mutual``. The clients' own models start from the same random weights,
    which differ from the shared model's. All other parameters, such as the loss's, are private.
    """

    takes_only_merged = True
    traits = OwnModel.traits | {SECOND_MODEL}
    needs = {
        MUTUAL: "personalization=second_model: trains nothing by itself; use loss=mutual or "
        "loss=adaptive_mutual"
    }

    @torch.no_grad()
    def setup(self, setting: Setting) -> None:
        """Draw the initial weights of the own models. An exported model has its weights already."""
        drawn = setting.server.draw_model(_NUMBER)
        for name, value in self.own_parameters().items():
            if name in drawn:
                value.copy_(drawn[name])

    def shared(self, name: str) -> bool:
        """Whether the weight is shared: the weights of backbone and head are."""
        return name.startswith(("backbone.", "head."))
