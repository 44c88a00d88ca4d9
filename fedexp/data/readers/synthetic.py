"""Synthetic(alpha, beta) of FedProx (Li et al., MLSys 2020): each client has its own model."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeInt

from fedexp.config.compatibility.traits import OWN_LABELLING
from fedexp.core.description import Description
from fedexp.core.randomness import numpy_generator
from fedexp.data.dataset import Split
from fedexp.data.drawn import DrawnSource

FEATURES, CLASSES = 60, 10
LARGEST = 2_000_000
"""Largest number of samples of a client; they take 0.5 GB."""

Size = Annotated[int, Field(ge=2, le=LARGEST)]
Spread = Annotated[float, Field(ge=0, le=1e6)]
STD = np.arange(1, FEATURES + 1) ** -0.6
"""[60] square roots of Sigma's diagonal, Sigma_jj = j^-1.2."""


@dataclass
class Synthetic(DrawnSource):
    """Client k has inputs x [60] with labels argmax softmax(W_k x + b_k), 10 classes.

    The distributions are taken from the released code. There, ``alpha`` and ``beta`` are standard
    deviations. In the paper's N(0, alpha), alpha may be a variance. For 0 and 1 this makes no
    difference::

        u_k ~ N(0, alpha^2)     entries of W_k, b_k ~ N(u_k, 1)
        B_k ~ N(0, beta^2)      entries of v_k ~ N(B_k, 1)
        x ~ N(v_k, Sigma)       Sigma diagonal with Sigma_jj = j^-1.2
        n_k = floor(exp(size_mean + size_std g)) + size_min,  g ~ N(0, 1)

    alpha sets how much the models of the clients differ, beta how much their inputs differ. All
    entries of W_k and b_k have the same mean u_k, as in the released code. n_k is the client's
    number of training and test samples; the released code tests on a tenth of them.

    A client's random generators depend only on ``seed`` and on the client's number, so its samples
    do not depend on the size of the population.

    Args:
        test_fraction: see ``DrawnSource``.
        test_clients: see ``DrawnSource``.
        alpha: standard deviation of u_k.
        beta: standard deviation of B_k.
        iid: whether all clients share one W and b with entries ~ N(0, 1), and every entry of v_k is
            B_k (Synthetic-IID, with alpha and beta 0).
        size_mean: mean of the logarithm of the sizes.
        size_std: standard deviation of the logarithm of the sizes.
        size_min: number that is added to each size; at least 2.
        size_max: upper bound of the sizes; None for ``LARGEST``. With the published distribution,
            the largest of a million sizes is 0.7 million.
        seed: seed of the samples; independent of the run's seed.
    """

    unread_if: ClassVar = {"alpha": {"iid": (True,)}}

    alpha: Spread
    beta: Spread
    iid: bool
    size_mean: Annotated[float, Field(ge=0, le=12)]
    size_std: Annotated[float, Field(ge=0, le=4)]
    size_min: Size
    size_max: Size | None
    seed: NonNegativeInt

    def __post_init__(self) -> None:
        if not self.iid:
            self.traits = self.traits | {OWN_LABELLING}

    def describe(self) -> Description:
        """The shape of the inputs and the names of the classes."""
        return Description("synthetic", (FEATURES,), tuple(map(str, range(CLASSES))))

    def totals(self, num_clients: int) -> np.ndarray:
        """The number of training and test samples of each of the N clients, [N].

        A client's number does not depend on N.
        """
        draw = numpy_generator(self.seed, "synthetic/sizes")
        sizes = draw.lognormal(self.size_mean, self.size_std, num_clients)
        bound = LARGEST if self.size_max is None else self.size_max
        totals: np.ndarray = np.minimum(np.floor(sizes) + self.size_min, bound).astype(np.int64)
        return totals

    def draw(self, client: int, total: int) -> Split:
        """Draw ``total`` samples of a client; a larger ``total`` keeps these and appends others."""
        generator = numpy_generator(self.seed, "synthetic/client", client)
        u, centre = generator.standard_normal(2) * (self.alpha, self.beta)
        means = centre + generator.standard_normal(FEATURES)
        weight = u + generator.standard_normal((FEATURES + 1, CLASSES))  # the last row is b_k
        if self.iid:
            means = np.full(FEATURES, centre)
            weight = numpy_generator(self.seed, "synthetic/shared").standard_normal(weight.shape)
        noise = generator.standard_normal((total, FEATURES), dtype=np.float32)
        inputs = noise * STD.astype(np.float32) + means.astype(np.float32)
        # Double precision, so that the rounding of a processor does not decide a label.
        labels = (inputs.astype(np.float64) @ weight[:-1] + weight[-1]).argmax(axis=1)
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels))
