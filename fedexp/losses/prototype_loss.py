"""The base class of losses that compare features with prototypes from the server."""

from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import COMPARES_WITH_MODEL
from fedexp.contract import Client, Loss, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.prototypes import class_prototypes, stack_reports

Weighting = Literal["samples", "uniform"]


def mean_prototypes(
    prototypes: Tensor, counts: Tensor, weighting: Weighting = "samples"
) -> tuple[Tensor, Tensor]:
    """Average each class's prototypes over the clients that hold it (Tan et al., AAAI 2022).

    With ``samples`` this is Eq. 6 without its further division by the number of these clients. The
    released code has ``uniform``.

    Args:
        prototypes: [K, C, d]; a prototype of a class that the client lacks has weight 0.
        counts: [K, C], each client's number of samples of each class.
        weighting: with ``samples`` a client's weight is its number of samples of the class. With
            ``uniform`` all clients that hold the class have the same weight.

    Returns:
        The pair (prototypes, holds). ``holds`` [C] bool says whether any client holds the class.
        ``prototypes`` [C, d] are the averages, computed in float64. A class that no client holds
        has the average zero.
    """
    weights = counts if weighting == "samples" else (counts > 0).long()
    total = weights.sum(dim=0)
    shares = weights.double() / total.clamp(min=1)
    means = torch.einsum("kc,kcd->cd", shares, prototypes.double())
    return means.to(prototypes.dtype), total > 0


class PrototypeLoss(Loss):
    """A loss that uses tensors that the server computes from the cohort's class prototypes.

    Clients report their class prototypes and class counts. On the server ``merge`` computes tensors
    from them, by default the mean prototypes; a subclass makes buffers for the tensors. The buffer
    ``holds`` says which classes have a prototype. For a class that the latest cohort lacks, the
    server sends the values of an earlier cohort.

    Attributes:
        weighting: the clients' weights in a mean prototype; see ``mean_prototypes``.
        by_client: names of the tensors from ``merge`` whose first dimension is the client.
    """

    traits = frozenset({COMPARES_WITH_MODEL})
    weighting: Weighting = "samples"
    by_client: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.known: Tensors = {}  # the tensors to send; ``setup`` or ``aggregate`` sets them

    def setup(self, setting: Setting) -> None:
        """Set the number of classes C. Subclasses also make buffers here."""
        self.num_classes = setting.num_classes

    def embed(self, z: Tensor) -> Tensor:
        """The features [n, d] whose class means are prototypes; by default the features z."""
        return z

    def merge(self, prototypes: Tensor, counts: Tensor) -> Tensors:
        """Compute the tensors to send from a cohort's prototypes [K, C, d] and counts [K, C].

        By default they are the mean prototypes, and ``holds``, which says which classes have one.

        Returns:
            Name -> tensor [C, ...], or [K, C, ...] if the name is in ``by_client``.
        """
        means, holds = mean_prototypes(prototypes, counts, self.weighting)
        return {"prototypes": means, "holds": holds}

    def broadcast(self, round: int) -> Tensors:
        """Send the tensors from ``merge``, or at first the tensors from ``setup``, if any."""
        return dict(self.known)

    def receive(self, message: PartMessage) -> None:
        """Store the tensors that the server sent. If it sent none, no class has a prototype."""
        self.get_buffer("holds").fill_(False)
        for name, tensor in message.extras.items():
            self.get_buffer(name).copy_(tensor)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """For each class, the trained model's mean features and the number of samples."""
        z, labels = client.features()
        prototypes, counts = class_prototypes(self.embed(z), labels, self.num_classes)
        return {"prototypes": prototypes, "counts": counts}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Call ``merge``, but keep the earlier values of classes that the cohort lacks."""
        prototypes, counts = stack_reports(updates)
        new = self.merge(prototypes, counts)
        held = (counts > 0).any(dim=0)
        self.known = renewed(self.known, new, held, self.by_client) if self.known else new

    def server_state(self) -> Tensors:
        """The tensors that the server sends."""
        return dict(self.known)

    def load_server_state(self, state: Tensors) -> None:
        """Inverse of ``server_state``."""
        self.known = dict(state)


def renewed(old: Tensors, new: Tensors, held: Tensor, by_client: Collection[str]) -> Tensors:
    """Take the values of held classes from ``new`` and those of the other classes from ``old``.

    Args:
        old: name -> [C, ...], or [K, C, ...] for names in ``by_client``.
        new: tensors with the same names. If an old and a new tensor differ in K, rows of zeros are
            appended to the tensor with the smaller K.
        held: [C] bool, whether the latest cohort holds the class.
        by_client: names of the tensors whose first dimension is the client.
    """
    result = {}
    for name, tensor in new.items():
        before = old[name].to(tensor.device)
        if name in by_client:
            rows = max(len(before), len(tensor))
            before, tensor = _padded(before, rows), _padded(tensor, rows)
        class_dim = 1 if name in by_client else 0
        is_new = held.view(-1, *[1] * (tensor.dim() - class_dim - 1))
        result[name] = torch.where(is_new, tensor, before)
    return result


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Append rows of zeros to ``tensor`` [K, ...] until it has ``rows`` rows."""
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
