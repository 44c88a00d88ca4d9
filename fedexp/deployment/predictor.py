"""A trained model that takes raw inputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedexp.data.preparations.preparation import Preparation
from fedexp.deployment.network import Network


@dataclass(frozen=True)
class Predictor:
    """A trained model together with the preparation of raw inputs.

    Attributes:
        network: maps the tensor that ``preparation`` makes to probabilities. It is in eval mode.
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
        """The name of the most probable class of each input [n], or of each of L tokens [n, L].

        Args:
            raw: raw inputs of the kind of the training data, see ``Preparation.read``: a table
                (pandas or a dict of columns); uint8 images, image files or Pillow's images; texts;
                sequences of token ids; or arrays of numbers.
            batch_size: inputs in one forward pass.

        Raises:
            InputError: ``raw`` does not fit the model.
        """
        best = self.predict_proba(raw, batch_size).argmax(axis=-1)
        names: np.ndarray = np.array(self.classes)[best]
        return names

    @torch.inference_mode()
    def predict_proba(self, raw: Any, batch_size: int = 1000) -> np.ndarray:
        """The probability of each class, [n, C] in the order of ``classes``; see ``predict``."""
        device = next(self.network.parameters()).device
        pieces = torch.split(self.preparation.read(raw), batch_size)
        found = [self.network(piece.to(device)).cpu() for piece in pieces]
        probabilities: np.ndarray = torch.cat(found).numpy()
        return probabilities
