"""The privacy loss of a sequence of noisy sums."""

from collections.abc import Sequence

import numpy as np

from fedexp.errors import InputError


class Accountant:
    """Computes (epsilon, delta) of repeated sums with Gaussian noise, by the library opacus.

    Each client takes part in a sum independently with the same probability (Poisson sampling). The
    class uses Renyi accounting as in Mironov et al., 2019 (arXiv 1908.10530). It converts the
    result to (epsilon, delta) as in Balle et al., AISTATS 2020, Theorem 21. Two neighbouring data
    sets differ by the data of one client.

    Raises:
        InputError: opacus is not installed.
    """

    _orders: Sequence[float]
    _per_release: np.ndarray

    def __init__(self) -> None:
        try:
            from opacus.accountants import RDPAccountant
            from opacus.accountants.analysis import rdp
        except ImportError as error:
            raise InputError(
                "aggregator=private: needs opacus, which is not installed; "
                "pip install 'fedexp[privacy]'"
            ) from error
        self._rdp = rdp
        # With few rounds and much noise the best Renyi order is above opacus's default orders.
        self._orders = [*RDPAccountant.DEFAULT_ALPHAS, 128, 256, 512]

    def set(self, noise_multiplier: float, sampling_rate: float) -> None:
        """Set the noise multiplier and the probability that a client takes part in a round."""
        self._per_release = self._rdp.compute_rdp(
            q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=self._orders
        )

    def epsilon(self, releases: int, delta: float) -> float:
        """Compute epsilon after ``releases`` noisy sums, for this delta."""
        epsilon, _ = self._rdp.get_privacy_spent(
            orders=self._orders, rdp=releases * self._per_release, delta=delta
        )
        return float(epsilon)
