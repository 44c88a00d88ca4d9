"""A trained model that takes raw inputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedexp.data.preparations.preparation import Preparation
from fedexp.deployment.network import Network
from fedexp.errors import InputError


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
