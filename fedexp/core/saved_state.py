"""Saving and loading the tensors of a trained model that predictions need."""

import torch

from fedexp.core.client import ClientModule
from fedexp.core.messages import Tensors
from fedexp.errors import InputError

PREDICTS = ("backbone.", "head.", "personalization.")
"""Beginnings of the names of the tensors that predictions need."""


def saved_state(module: ClientModule) -> Tensors:
    """The module's state dict, and the personalization's buffers if it has class vectors."""
    state: Tensors = dict(module.state_dict())
    if module.personalization.class_vectors() is not None:
        own = module.personalization.named_buffers(prefix="personalization")
        state |= {name: value.detach() for name, value in own}
    return state


def predicting(state: Tensors) -> Tensors:
    """The tensors of a ``saved_state`` that predictions need."""
    return {name: value for name, value in state.items() if name.startswith(PREDICTS)}


@torch.no_grad()
def load_saved(module: ClientModule, state: Tensors) -> None:
    """Copy a ``saved_state`` into the backbone, head and personalization of ``module``.

    Loss and regularizer keep their tensors: predictions do not need them.

    Raises:
        InputError: a tensor is absent or has another shape.
    """
    for name, value in predicting(saved_state(module)).items():
        saved = state.get(name)
        if saved is None or saved.shape != value.shape:
            found = "absent" if saved is None else list(saved.shape)
            raise InputError(
                f"the weights do not fit the model of this config: {name} is {found} in the file, "
                f"{list(value.shape)} in the model"
            )
        value.copy_(saved)
