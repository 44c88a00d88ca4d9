"""A trained model that takes raw inputs, and the network in it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedexp.core.client import ClientModule
from fedexp.core.forward import at_least_float32
from fedexp.data.preparations.preparation import Preparation
from fedexp.errors import InputError


class Network(nn.Module):
    """Turns raw inputs into class probabilities, by preparation, backbone, head and softmax.

    If the model is personal, its personalization part applies the head, and may change the logits
    before the softmax.

    Args:
        preparation: turns a tensor of raw inputs into the inputs of the backbone.
        model: the trained model, whose modules this network uses without a copy.
        personal: whether ``model`` is a client's personal model.
    """

    def __init__(self, preparation: Preparation, model: ClientModule, personal: bool) -> None:
        super().__init__()
        self.preparation = preparation
        self.backbone, self.head = model.backbone, model.head
        self.personalization = model.personalization if personal else None

    def forward(self, raw: Tensor) -> Tensor:
        """The class probabilities of n raw inputs: [n, C], or [n, L, C] if each has L tokens."""
        z = at_least_float32(self.backbone(self.preparation.prepare(raw)))
        own = self.personalization
        logits: Tensor = self.head(z) if own is None else own.apply_head(self.head, z)
        if own is not None:
            logits = own.personalize(z, logits)
        return torch.softmax(logits, dim=-1)


@dataclass(frozen=True)
class Predictor:
    """A trained model that predicts the classes of raw inputs.

    Attributes:
        network: maps the tensor that ``preparation`` reads to probabilities; is in eval mode.
        classes: the class names, in the order of the probabilities.
        preparation: reads raw inputs, such as a table, image files or texts, into a tensor.
        name: a description, such as "global model of outputs/2026-01-31/12-00-00-4f2a".
    """

    network: Network
    classes: tuple[str, ...]
    preparation: Preparation
    name: str

    @property
    def takes(self) -> str:
        """A description of the raw inputs that the model takes."""
        return self.preparation.form

    def predict(self, raw: Any, batch_size: int = 1000) -> np.ndarray:
        """The name of the most probable class: [n] for n inputs, or [n, L] if each has L tokens.

        Args:
            raw: inputs of the same kind as the training data (see ``Preparation.read``): a table
                (pandas or a dict of columns); uint8 images, image files or Pillow's images; texts;
                sequences of token ids; or arrays of numbers.
            batch_size: number of inputs in one forward pass.

        Raises:
            InputError: ``raw`` does not fit the model, or the model's probabilities are NaN.
        """
        best = self.predict_proba(raw, batch_size).argmax(axis=-1)
        names: np.ndarray = np.array(self.classes)[best]
        return names

    @torch.inference_mode()
    def predict_proba(self, raw: Any, batch_size: int = 1000) -> np.ndarray:
        """The probability of each class for n inputs: [n, C], or [n, L, C] if each has L tokens.

        The classes are in the order of ``classes``. ``predict`` explains the arguments and errors.
        """
        device = next(self.network.parameters()).device
        pieces = torch.split(self.preparation.read(raw), batch_size)
        found = [self.network(piece.to(device)).cpu() for piece in pieces]
        probabilities: np.ndarray = torch.cat(found).numpy()
        wrong = np.isnan(probabilities).reshape(len(probabilities), -1).any(axis=1)
        if wrong.any():
            raise InputError(
                f"predict: the {self.name} gives no probabilities for input {wrong.argmax()}: they "
                "are NaN; the input may hold NaN or infinite numbers"
            )
        return probabilities
