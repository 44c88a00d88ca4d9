"""The two-dimensional spiral of FedNH's motivating example (Dai et al., AAAI 2023)."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt

from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.dataset import Dataset, Source, Split

NUM_ARMS = 6
POINTS = 3000
IMBALANCED_SIZES = (3000, 1500, 750, 375, 187, 93)


class Spiral(Source):
    """Six spiral arms of 3,000 points, one class each; float32 inputs [n, 2], used as they are.

    Point i = 1..3000 of arm k = 1..6 lies at ``(r sin w, r cos w)`` with ``b ~ N(0, noise^2)``,
    ``r = 1 + 9 (i - 1) / 2999`` and ``w = k pi/3 + turn_k (i - 1) / 2999 + b``.

    The paper's text has ``turn_k = k pi/3`` and b ~ N(0, 1). Drawn so, a noise of one radian hides
    the arms, and even without noise the outer ends of arms 1 and 4, 2 and 5, 3 and 6 coincide. The
    defaults, equal turns of pi/3 and ``noise=0.15``, show the six separate arms of its Figure 1.

    Args:
        noise: standard deviation of the angle, in radians.
        turn: ``equal`` (every arm turns by pi/3) or ``proportional`` (arm k turns by k pi/3).
        imbalanced: keep random subsets of 3000, 1500, 750, 375, 187 and 93 training points. The
            test split has all six arms in full, with noise of its own.
        seed: of the points; independent of the seed of the run.
    """

    def __init__(
        self,
        noise: NonNegativeFloat,
        turn: Literal["equal", "proportional"],
        imbalanced: bool,
        seed: NonNegativeInt,
    ) -> None:
        self.noise = noise
        self.turn = turn
        self.imbalanced = imbalanced
        self.seed = seed

    def describe(self) -> Description:
        """Shape and classes."""
        return Description("spiral", (2,), tuple(f"arm {k}" for k in range(1, NUM_ARMS + 1)))

    def load(self, cache: Path) -> Dataset:
        """The dataset; nothing is cached."""
        full = (POINTS,) * NUM_ARMS
        return Dataset(
            self.describe(),
            train=self._draw("train", IMBALANCED_SIZES if self.imbalanced else full),
            test=self._draw("test", full),
        )

    def _draw(self, split: str, sizes: tuple[int, ...]) -> Split:
        """All points of every arm, then a random subset of the given size of each."""
        generator = numpy_generator(self.seed, f"spiral/{split}")
        points = self._arms(generator.standard_normal((NUM_ARMS, POINTS)))
        kept = [generator.choice(POINTS, size, replace=False) for size in sizes]
        inputs = np.concatenate([arm[index] for arm, index in zip(points, kept, strict=True)])
        labels = np.repeat(np.arange(NUM_ARMS), sizes)
        return Split(torch.from_numpy(inputs).to(torch.float32), torch.from_numpy(labels))

    def _arms(self, standard_noise: np.ndarray) -> np.ndarray:
        """Coordinates [6, 3000, 2] for standard normal noise [6, 3000]."""
        way = np.linspace(0, 1, POINTS)
        start = np.arange(1, NUM_ARMS + 1)[:, None] * np.pi / 3
        turn = start if self.turn == "proportional" else np.pi / 3
        angle = start + way * turn + self.noise * standard_noise
        radius = 1 + 9 * way
        return np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=-1)
