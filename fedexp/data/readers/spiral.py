"""The two-dimensional spiral of FedNH's motivating example (Dai et al., AAAI 2023)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt

from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.dataset import Dataset, Source, Split

NUM_ARMS = 6
POINTS = 3000
FULL_SIZES = (POINTS,) * NUM_ARMS
IMBALANCED_SIZES = (3000, 1500, 750, 375, 187, 93)


@dataclass
class Spiral(Source):
    """Six spiral arms, one class each; float32 inputs [n, 2], not normalised.

    Each arm has n = 3,000 points. Point i = 1..n of arm k = 1..6 is at ``(r sin w, r cos w)``, with
    the radius ``r = 1 + 9 (i - 1) / (n - 1)`` and the angle
    ``w = k pi/3 + turn_k (i - 1) / (n - 1) + b``. Arm k turns by the angle ``turn_k``, and b is
    noise.

    The paper's text has ``turn_k = k pi/3`` and b ~ N(0, 1). This noise hides the arms, and even
    without noise the outer ends of arms 1 and 4, 2 and 5, 3 and 6 coincide. The config's defaults,
    equal turns of pi/3 and b ~ N(0, 0.15^2), give the six separate arms of the paper's Figure 1.
    The released notebook has equal turns, b uniform in [0, 0.5), coarser arms for smaller classes,
    and 100 test points per class.

    Args:
        noise: size of the noise b in radians: its standard deviation if normal, its range if
            uniform.
        noise_law: the distribution of b: ``normal`` is N(0, noise^2), ``uniform`` is in [0, noise).
        turn: ``equal`` (every arm turns by pi/3) or ``proportional`` (arm k turns by k pi/3).
        imbalanced: whether the arms have 3000, 1500, 750, 375, 187 and 93 training points, not 3000
            each.
        thinning: how to draw fewer than 3,000 points of an arm, of either split. ``subset`` chooses
            random points of the full arm. ``coarser`` spreads fewer points over the whole arm.
        test_points: test points of each arm; their noise is drawn separately.
        seed: seed of the points; independent of the run's seed.
    """

    noise: Annotated[float, Field(ge=0, le=1e6)]
    noise_law: Literal["normal", "uniform"]
    turn: Literal["equal", "proportional"]
    imbalanced: bool
    thinning: Literal["subset", "coarser"]
    test_points: Annotated[int, Field(ge=1, le=POINTS)]
    seed: NonNegativeInt

    def describe(self) -> Description:
        """The shape of the inputs and the names of the classes."""
        return Description("spiral", (2,), tuple(f"arm {k}" for k in range(1, NUM_ARMS + 1)))

    def load(self, cache: Path) -> Dataset:
        """Draw the dataset; nothing is cached."""
        return Dataset(
            self.describe(),
            train=self._draw("train", IMBALANCED_SIZES if self.imbalanced else FULL_SIZES),
            test=self._draw("test", (self.test_points,) * NUM_ARMS),
        )

    def _draw(self, split: str, sizes: tuple[int, ...]) -> Split:
        """Draw one split of six arms; ``sizes`` are their numbers of points."""
        generator = numpy_generator(self.seed, f"spiral/{split}")
        if self.thinning == "coarser":
            noise = [self._noise(generator, size) for size in sizes]
            arms = [self._arm(number, b) for number, b in enumerate(noise, start=1)]
        else:
            noise = list(self._noise(generator, NUM_ARMS, POINTS))
            arms = [
                self._arm(number, b)[generator.choice(POINTS, size, replace=False)]
                for number, (b, size) in enumerate(zip(noise, sizes, strict=True), start=1)
            ]
        labels = np.repeat(np.arange(NUM_ARMS), sizes)
        inputs = torch.from_numpy(np.concatenate(arms)).to(torch.float32)
        return Split(inputs, torch.from_numpy(labels))

    def _noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw the noise b of the angles, in radians."""
        draw = generator.standard_normal if self.noise_law == "normal" else generator.random
        return self.noise * draw(shape)

    def _arm(self, number: int, noise: np.ndarray) -> np.ndarray:
        """The coordinates [n, 2] of arm ``number`` (1 to 6), whose angles have ``noise`` [n]."""
        way = np.linspace(0, 1, len(noise))
        start = number * np.pi / 3
        turn = start if self.turn == "proportional" else np.pi / 3
        angle = start + way * turn + noise
        radius = 1 + 9 * way
        return np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=-1)
