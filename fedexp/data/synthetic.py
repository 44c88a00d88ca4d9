"""Synthetic(alpha, beta) of FedProx (Li et al., MLSys 2020): a model for every client."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.dataset import Split
from fedexp.data.drawn import DrawnSource
from fedexp.data.train_test import TestFraction

FEATURES, CLASSES = 60, 10
LARGEST = 2_000_000
"""Samples of a client at most: they take 0.5 GB."""

Size = Annotated[int, Field(ge=2, le=LARGEST)]
STD = np.arange(1, FEATURES + 1) ** -0.6
"""[60] the square root of Sigma's diagonal, Sigma_jj = j^-1.2."""


class Synthetic(DrawnSource):
    """Inputs x [60] of client k with labels argmax softmax(W_k x + b_k), 10 classes.

    As in the released code, whose ``alpha`` and ``beta`` are standard deviations (the paper writes
    N(0, alpha), which could also be read as a variance; they agree at 0 and 1)::

        u_k ~ N(0, alpha^2)     entries of W_k, b_k ~ N(u_k, 1)
        B_k ~ N(0, beta^2)      entries of v_k ~ N(B_k, 1)
        x ~ N(v_k, Sigma)       Sigma diagonal with Sigma_jj = j^-1.2
        n_k = floor(exp(size_mean + size_std g)) + size_min,  g ~ N(0, 1)

    alpha controls how much the clients' models differ, beta how much their inputs do. The bias has
    the mean of the weights, as in the released code. n_k counts a client's samples for training and
    for testing, of which the released code tests on a tenth.

    A client is drawn from streams keyed by ``seed`` and its number, so that it is the same in every
    population that has it.

    Args:
        alpha: standard deviation of u_k.
        beta: standard deviation of B_k.
        iid: instead, all clients have one W and b with entries ~ N(0, 1), and v_k is B_k in every
            entry (Synthetic-IID, with alpha and beta 0).
        size_mean: of the logarithm of the sizes.
        size_std: likewise.
        size_min: what is added to each size, at least 2.
        size_max: larger sizes become this one; None is ``LARGEST``. Of a million published sizes
            the largest is 0.7 million.
        test_fraction: see ``DrawnSource``.
        test_clients: see ``DrawnSource``.
        seed: of the samples; independent of the seed of the run.
    """

    def __init__(
        self,
        alpha: NonNegativeFloat,
        beta: NonNegativeFloat,
        iid: bool,
        size_mean: Annotated[float, Field(ge=0, le=12)],
        size_std: Annotated[float, Field(ge=0, le=4)],
        size_min: Size,
        size_max: Size | None,
        test_fraction: TestFraction,
        test_clients: PositiveInt,
        seed: NonNegativeInt,
    ) -> None:
        super().__init__(test_fraction, test_clients)
        self.alpha, self.beta, self.iid = alpha, beta, iid
        self.size_mean, self.size_std = size_mean, size_std
        self.size_min, self.size_max = size_min, size_max
        self.seed = seed

    def describe(self) -> Description:
        """Shape and classes."""
        return Description("synthetic", (FEATURES,), tuple(map(str, range(CLASSES))))

    def totals(self, num_clients: int) -> np.ndarray:
        """n_k of each client; the first ones are the same whatever their number."""
        draw = numpy_generator(self.seed, "synthetic/sizes")
        sizes = draw.lognormal(self.size_mean, self.size_std, num_clients)
        bound = LARGEST if self.size_max is None else self.size_max
        totals: np.ndarray = np.minimum(np.floor(sizes) + self.size_min, bound).astype(np.int64)
        return totals

    def draw(self, client: int, total: int) -> Split:
        """The first samples are the same whatever their number."""
        generator = numpy_generator(self.seed, "synthetic/client", client)
        u, centre = generator.standard_normal(2) * (self.alpha, self.beta)
        means = centre + generator.standard_normal(FEATURES)
        weight = u + generator.standard_normal((FEATURES + 1, CLASSES))  # the last row is b_k
        if self.iid:
            means = np.full(FEATURES, centre)
            weight = numpy_generator(self.seed, "synthetic/shared").standard_normal(weight.shape)
        noise = generator.standard_normal((total, FEATURES), dtype=np.float32)
        inputs = noise * STD.astype(np.float32) + means.astype(np.float32)
        # In double precision, so that no rounding of a processor decides a label.
        labels = (inputs.astype(np.float64) @ weight[:-1] + weight[-1]).argmax(axis=1)
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels))
