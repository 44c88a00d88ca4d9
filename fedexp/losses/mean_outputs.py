"""FD: clients exchange their mean predictions for each class, and learn from the others' means."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.contract import Client, Forward, Loss, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.forward import is_of_class
from fedexp.core.transfer import to_device


def others_mean(sums: Tensor, holders: Tensor, own: Tensor, is_in: Tensor) -> tuple[Tensor, Tensor]:
    """The mean predictions of the other clients for each class (Jeong et al., 2018, Alg. 1).

    Args:
        sums: [C, C], for each class the sum of the clients' mean predictions.
        holders: [C], the number of clients in each sum.
        own: [C, C], the client's own mean predictions.
        is_in: [C] bool, whether the client's own predictions are in the sum of the class.

    Returns:
        The pair (means [C, C], known [C] bool). Without other clients a class is not known, and its
        mean is zero.
    """
    others = holders - is_in.to(holders.dtype)
    total = sums - own.where(is_in.unsqueeze(1), 0)
    known = others > 0
    return total / others.clamp(min=1).unsqueeze(1) * known.unsqueeze(1), known


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy [B] of the predictions of ``logits`` [B, C] with the ``teacher``'s [B, C].

    A class with the logit -inf adds 0.
    """
    logs = F.log_softmax(logits, dim=1).masked_fill(logits.isneginf(), 0)
    return -(teacher * logs).sum(dim=1)


class MeanOutputs(Loss):
    """Cross-entropy, plus gamma times the cross-entropy with other clients' mean predictions (FD).

    For each class, a client sends the mean of its predicted probabilities for samples of the class,
    over all local steps of the round (Jeong et al., 2018, Alg. 1). The server sums them over the
    clients that hold the class. In later rounds a sample's teacher is the other clients' mean
    prediction for the sample's class; all clients have the same weight. The term is left out for a
    class that no other client has reported. If the latest cohort lacks a class, the server keeps
    the sum of an earlier cohort. In the paper all clients take part in every round. PFLlib has the
    mean logits of all clients, the client's own among them, in place of the probabilities.

    Args:
        gamma: weight of the second term.
    """

    saved = ("sums", "holders", "renewed", "is_known")
    teacher: Tensor
    known: Tensor

    def __init__(self, gamma: NonNegativeFloat) -> None:
        super().__init__()
        self.gamma = gamma

    def setup(self, setting: Setting) -> None:
        """Make buffers for the teacher's predictions [C, C] and the mask of known classes [C]."""
        self.num_classes = setting.num_classes
        square = torch.zeros(self.num_classes, self.num_classes)
        self.register_buffer("teacher", square, persistent=False)
        self.register_buffer("known", torch.zeros(self.num_classes), persistent=False)
        self.sums, self.holders = square.clone(), torch.zeros(self.num_classes)
        self.renewed = torch.zeros(self.num_classes, dtype=torch.int64)
        self.is_known = False

    def broadcast(self, round: int) -> Tensors:
        """Send for each class the sum, the number of clients in it, and the round of its cohort."""
        if not self.is_known:
            return {}
        return {"sums": self.sums, "holders": self.holders, "renewed": self.renewed}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the teacher: the mean predictions of the other clients."""
        self.known.zero_()
        if not message.extras:
            return
        sums, holders, renewed = (message.extras[n] for n in ("sums", "holders", "renewed"))
        own, is_in = torch.zeros_like(sums), torch.zeros_like(holders, dtype=torch.bool)
        if memory:
            reports = memory["outputs"]
            # The server refuses a report that is not finite.
            finite = reports.isfinite().flatten(1).all(dim=1, keepdim=True)
            are_in = (renewed == memory["rounds"]) & finite
            own, is_in = reports.where(are_in.unsqueeze(2), 0).sum(dim=0), are_in.any(dim=0)
        teacher, known = others_mean(sums, holders, own, is_in)
        self.teacher.copy_(teacher)
        self.known.copy_(known)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        y = batch.targets
        labels = F.cross_entropy(batch.logits, y, reduction="none")
        taught = soft_cross_entropy(batch.logits, self.teacher[y]) * self.known[y]
        return batch.mean(labels + self.gamma * taught)

    def measure(self, batch: Forward) -> Tensors:
        """For each class, the sum of the predictions and the number of samples in the batch."""
        members = is_of_class(batch.targets, self.num_classes).to(batch.logits)
        if batch.real is not None:
            members = members * batch.real.unsqueeze(1)
        return {"sums": members.T @ batch.logits.softmax(dim=1), "counts": members.sum(dim=0)}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The mean predictions [C, C] of each class, whether it was trained on [C], the round.

        The client remembers its last two predictions for each class [2, C, C], the latest first,
        and their rounds [2, C]. A separate personal model is trained after the report, but with
        the message from before it, whose sum may contain the earlier prediction.
        """
        measured = client.measured(self)
        counts = measured["counts"]
        outputs = measured["sums"] / counts.clamp(min=1).unsqueeze(1)
        holds, round = counts > 0, torch.full((), client.round, device=counts.device)
        known = memory.get("outputs", torch.zeros_like(outputs).expand(2, -1, -1))
        rounds = memory.get("rounds", torch.full_like(counts, -1, dtype=round.dtype).expand(2, -1))
        memory.update(
            outputs=torch.stack([outputs, known[0]]).where(holds.unsqueeze(1), known),
            rounds=torch.stack([round.expand_as(rounds[0]), rounds[0]]).where(holds, rounds),
        )
        return {"outputs": outputs, "holds": holds, "round": round}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Sum the predictions of the clients that hold a class."""
        reports = [each.extras for each in updates]
        self.is_known = True
        holds = torch.stack([each["holds"] for each in reports])
        sums = (torch.stack([each["outputs"] for each in reports]) * holds.unsqueeze(2)).sum(dim=0)
        held = holds.any(dim=0)
        old = [to_device(each, held.device) for each in (self.sums, self.holders, self.renewed)]
        self.sums = torch.where(held.unsqueeze(1), sums, old[0])
        self.holders = torch.where(held, holds.sum(dim=0).to(old[1].dtype), old[1])
        self.renewed = torch.where(held, reports[0]["round"], old[2])
