"""FedDisco: a client weighs less if its class distribution is far from the target distribution."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.aggregators.average import LARGE_CLIENTS_TWICE, Average
from fedexp.aggregators.gathered import Gathered
from fedexp.config.compatibility.traits import OTHER_WEIGHTS, TAKES_STALE
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.transfer import to_device

Distance = Literal["kl", "l2"]


def discrepancy(counts: Tensor, target: Tensor, distance: Distance) -> Tensor:
    """The distance of a client's class distribution D from the target T, a float64 scalar.

    With ``kl`` the distance is sum_c D_c log(D_c / T_c) over the classes c. With ``l2`` it is
    ||D - T||.

    Args:
        counts: [C] the number of the client's samples of each of the C classes.
        target: T [C], positive for each class that the client holds.
        distance: ``kl`` or ``l2``.
    """
    shares, target = counts.double() / counts.sum(), target.double()
    if distance == "l2":
        return (shares - target).square().sum().sqrt()
    held = shares > 0
    return (shares[held] * (shares[held] / target[held]).log()).sum()


def disco_weights(
    sizes: Tensor, discrepancies: Tensor, draws: Tensor, a: float, b: float, relative: bool
) -> Tensor:
    """The weights p_k of a cohort's K clients, as in ``Disco``: float64 [K], with the sum 1.

    a, b and ``relative`` are arguments of ``Disco``.

    Args:
        sizes: [K] the number of training samples of each client.
        discrepancies: [K] the discrepancies d_k.
        draws: [K] how often each client was drawn. A client that was drawn twice gets twice the
            weight.
    """
    shares = sizes / (draws * sizes).sum()
    total = (draws * discrepancies).sum()
    if relative and total > 0:
        discrepancies = discrepancies / total
    weights = draws * (shares - a * discrepancies + b).relu()
    return weights / weights.sum() if weights.sum() > 0 else draws * shares


class Disco(Gathered):
    """The average of the clients' models, weighted by their sizes and class distributions.

    Client k's weight in the average is $p_k = ReLU(n_k - a d_k + b)$, divided by the sum of these
    weights over the cohort (FedDisco; Ye et al., ICML 2023). n_k is the client's share of the
    cohort's samples. d_k is the ``discrepancy`` of the client's class distribution from the target
    distribution. The client computes d_k itself: it sends one number to the server, and no class
    counts. If the ReLU is 0 for all clients, they are weighted by their number of samples. This is
    our choice: the released code then stops with an error. Float buffers are averaged with p_k,
    too. Integer buffers are copied from the client with the most samples. If several clients have
    the most, the client with the lowest number is chosen.

    The formula of p_k and ``kl`` agree with the released code; the paper's text was not compared.

    Metric: ``aggregator/left_out``, the share of the cohort's clients with $p_k = 0$.

    Args:
        distance: ``kl`` or ``l2``.
        target: the target distribution. With ``uniform`` all classes have the same share.
            ``population`` is the class distribution of all training data: the server must know it
            and sends it to the clients.
        a: the factor of the discrepancy d_k. With a larger a, the size counts less.
        b: a constant that is added to each client's weight before the ReLU.
        relative: whether the d_k of a cohort are divided by their sum. The released code does this
            with ``kl``, but not with ``l2``. Its a = 0.5 and b = 0.1 fit the divided distances.
    """

    takes_tokens = False
    # Unlike other subclasses of Gathered, this one returns a weighted mean: no NOT_THE_MEAN.
    traits = frozenset({OTHER_WEIGHTS, TAKES_STALE})
    discourages = LARGE_CLIENTS_TWICE
    unread_if = {name: {"a": (0,)} for name in ("distance", "target", "relative")}
    _target: Tensor

    def __init__(
        self,
        distance: Distance,
        target: Literal["uniform", "population"],
        a: NonNegativeFloat,
        b: NonNegativeFloat,
        relative: bool,
    ) -> None:
        super().__init__()
        self.distance, self.target = distance, target
        self.a, self.b, self.relative = a, b, relative
        self._sent: Tensors = {}
        self._left_out = 0.0

    def setup(self, setting: Setting) -> None:
        """Compute the target class distribution T.

        Raises InputError if the target is ``population`` and the class counts are unknown.
        """
        self._target = torch.full((setting.num_classes,), 1 / setting.num_classes)
        if self.target == "population":
            counts = setting.clients.all_class_counts("aggregator.target=population").sum(dim=0)
            self._sent = {"target": (counts.double() / counts.sum()).float()}

    def broadcast(self, round: int) -> Tensors:
        """The target distribution [C] if it is ``population``.

        If it is ``uniform``, nothing is sent, because the clients know it.
        """
        return self._sent

    def receive(self, message: PartMessage) -> None:
        """Take the target class distribution from the message."""
        self._target = message.extras.get("target", self._target)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The distance d_k of the client's class distribution from the target, a float32 scalar."""
        counts = client.data.class_counts
        own = discrepancy(counts, to_device(self._target, counts.device), self.distance)
        return {"discrepancy": own.float()}

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The average of the clients' models, weighted by the p_k of ``disco_weights``."""
        sizes, draws = (
            torch.tensor([getattr(update, name) for update in updates], dtype=torch.float64)
            for name in ("num_samples", "draws")
        )
        found = torch.stack([update.extras["discrepancy"] for update in updates]).double().cpu()
        weights = disco_weights(sizes, found, draws, self.a, self.b, self.relative)
        self._left_out = (weights == 0).double().mean().item()
        average = Average("samples")
        for update, weight in zip(updates, weights.tolist(), strict=True):
            average.add_weighted(update, weight)
        return average.merge(current)

    def metrics(self) -> dict[str, float]:
        """The share of the cohort's clients with weight 0."""
        return {"aggregator/left_out": self._left_out}
