"""FedGC: the server corrects the classifier by the gradients that separate clients cannot have."""

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.declaration import TRAINED_HEAD
from fedexp.config.compatibility.traits import (
    DRAWS_BY_SIZE,
    LINEAR_HEAD,
    NOT_THE_MEAN,
    OTHER_WEIGHTS,
    REPLACES_MODEL,
)
from fedexp.contract import Client, Memory, PartUpdate, Setting, Tensors
from fedexp.core.transfer import to_device
from fedexp.errors import InputError
from fedexp.heads.linear import Linear

_WEIGHT = "head.linear.weight"


def rows_of_holders(current: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Average each class's row over the clients that hold the class.

    Args:
        current: [C, d], the rows before the round. A class that no client holds keeps its row.
        rows: [K, C, d], the clients' rows.
        shares: [K, C], a client's weight for a class; 0 if it lacks the class.
    """
    total = shares.sum(dim=0)
    weights = (shares / total.masked_fill(total == 0, 1)).double()
    means = torch.einsum("kc,kcd->cd", weights, rows.double()).to(rows.dtype)
    return torch.where((total > 0).unsqueeze(1), means, current)


def correction(rows: Tensor, holds: Tensor) -> Tensor:
    """The gradient [C, d] of the softmax regularizer (Niu and Deng, AAAI 2022).

    The regularizer is the sum over the held classes c of the cross-entropy of class c with the
    logits $w_c . w_j$, in which the factor w_c is constant. The classes j are c itself and the held
    classes that no client holds together with c. Local training has compared all other classes.

    Args:
        rows: w [C, d], the rows of the classifier.
        holds: [K, C] bool, the classes of each client.
    """
    held = holds.any(dim=0)
    together = (holds.float().T @ holds.float()) > 0
    compared = held & held.unsqueeze(1) & ~together
    compared = compared | torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    p = (rows @ rows.T).masked_fill(~compared, -torch.inf).softmax(dim=1)
    errors = p - torch.eye(len(rows), dtype=p.dtype, device=p.device)
    return errors.T @ rows


class Corrected(Linear):
    """A linear head without bias, whose rows the server averages over their holders and corrects.

    For clients with disjoint classes, FedGC (Niu and Deng, AAAI 2022) puts the clients' rows
    together, and then takes a step against the gradient of a softmax regularizer, ``correction``.
    The step pushes rows of different clients apart, as the gradients of a joint training would.
    Here clients may hold the same classes: a row is then the mean over its holders, weighted by
    their numbers of samples, and classes that a client of the cohort holds together are not pushed
    apart. Classes that the cohort lacks keep their rows. In PFLlib the step only pushes a row away
    from other clients' rows; here, as in a softmax, it also lengthens the row. A client learns its
    own classes alone with a loss that leaves out the others, such as
    ``loss=logit_adjustment loss.tau=0``.

    Args:
        feature_dim: d.
        num_classes: C.
        rate: length of the step, in the paper lambda times the learning rate. It is the same in all
            rounds, also if the learning rate has a schedule. 0: no correction.
    """

    traits = frozenset({LINEAR_HEAD, NOT_THE_MEAN})
    takes_tokens = False
    forbids = {
        **TRAINED_HEAD,
        **dict.fromkeys(
            (NOT_THE_MEAN, OTHER_WEIGHTS),
            "{other}: would not act on the rows of the classifier, which are means over their "
            "holders; with head=corrected take another {other}; aggregator=sample_weighted and "
            "uniform fit",
        ),
        REPLACES_MODEL: "head=corrected: the server corrects the classifier of the global model, "
        "but this {other} sends clients other models; use head=linear",
    }
    discourages = {
        DRAWS_BY_SIZE: "head=corrected: this sampler draws larger clients more often, and they "
        "also weigh more in the rows of the classifier; use sampler=random"
    }

    def __init__(
        self, feature_dim: PositiveInt, num_classes: PositiveInt, rate: NonNegativeFloat
    ) -> None:
        super().__init__(feature_dim, num_classes, bias=False)
        self.rate = rate

    def setup(self, setting: Setting) -> None:
        """Raise InputError if the classifier is private."""
        if _WEIGHT not in setting.model.shared:
            raise InputError(
                "head=corrected: the server corrects the classifier, but it is not sent; use a "
                "personalization that shares the head"
            )

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The classes that the client holds, [C] bool."""
        return {"holds": to_device(client.data.class_counts > 0, client.device)}

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The client's rows [C, d]."""
        return {"rows": weights[_WEIGHT]}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Keep what ``correct`` needs: the classes and rows of the cohort, and the weights."""
        self._holds = torch.stack([each.extras["holds"] for each in updates])
        self._rows = torch.stack([each.extras["rows"] for each in updates])
        sizes = torch.tensor([float(each.draws * each.num_samples) for each in updates])
        self._shares = self._holds * to_device(sizes, self._holds.device).unsqueeze(1)

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The merged weights with the rows of their holders, after the correction."""
        rows = rows_of_holders(current[_WEIGHT], self._rows, self._shares)
        return merged | {_WEIGHT: rows - self.rate * correction(rows, self._holds)}
