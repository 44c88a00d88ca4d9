"""Parts that break one rule of the contract of a part each."""

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate, Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Aggregator, Loss
from fedexp.losses.cross_entropy import CrossEntropy

_CALLS = itertools.count()


class WithoutKey(CrossEntropy):
    """Its draws come from a state that all runs of the process share."""

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * (1 + next(_CALLS) % 7)


class SideChannel(CrossEntropy):
    """The server's half reads what the clients' half has not sent."""

    samples = 0

    def report(self, client: Client, memory: Memory) -> Tensors:
        self.samples += client.data.num_samples
        return {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        return {name: value * (1 - self.samples / 1e4) for name, value in merged.items()}


class LeftBehind(CrossEntropy):
    """A client finds what the one before it has left."""

    turns = 0

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.turns += 1

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) / self.turns


class Forgetful(CrossEntropy):
    """The server's state is in no checkpoint."""

    scale: Tensor
    rounds = 0

    def setup(self, setting: Setting) -> None:
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def broadcast(self, round: int) -> Tensors:
        return {"scale": torch.tensor(1.0 + self.rounds)}

    def receive(self, message: PartMessage) -> None:
        self.scale.copy_(message.extras["scale"])

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.rounds += 1

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * self.scale


class Attribute(CrossEntropy):
    """What differs between clients is a number in Python, which a stack of clients cannot keep."""

    share = 0.0

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.share = client.data.num_samples / 120

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * (1 + 0.01 * self.share)


class Padded(Loss):
    """A stacked batch's padding counts as samples."""

    def forward(self, batch: Forward) -> Tensor:
        return F.cross_entropy(batch.logits, batch.targets)


class Absent(CrossEntropy):
    """It sends the mean features of each class, which are 0/0 for a class without samples."""

    def setup(self, setting: Setting) -> None:
        self.means = torch.zeros(setting.num_classes, setting.feature_dim)

    def report(self, client: Client, memory: Memory) -> Tensors:
        z, labels = client.features()
        sums = torch.zeros(self.means.shape).index_add_(0, labels, z)
        return {"means": sums / labels.bincount(minlength=len(sums)).unsqueeze(1)}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.means = torch.stack([each.extras["means"] for each in updates]).mean(0)

    def broadcast(self, round: int) -> Tensors:
        return {"means": self.means}


class Unregistered(CrossEntropy):
    """A tensor that differs between clients is no buffer."""

    def setup(self, setting: Setting) -> None:
        self.shares = torch.zeros(setting.num_classes)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.shares.copy_(client.data.class_counts / client.data.num_samples)

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * self.shares.square().sum()


class OnlyInBegin(CrossEntropy):
    """A tensor that differs between clients is made in ``begin``, not in ``setup``."""

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.shares = client.data.class_counts / client.data.num_samples

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * self.shares.square().sum()


class InADict(CrossEntropy):
    """A tensor that differs between clients is in a dict."""

    def setup(self, setting: Setting) -> None:
        self.of_client = {"shares": torch.zeros(setting.num_classes)}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.of_client = {"shares": client.data.class_counts / client.data.num_samples}

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * self.of_client["shares"].square().sum()


class SumsUp(CrossEntropy):
    """A local step changes a tensor that is no buffer."""

    def setup(self, setting: Setting) -> None:
        self.sums = torch.zeros(setting.feature_dim)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.sums.zero_()

    def forward(self, batch: Forward) -> Tensor:
        self.sums += batch.z.detach().sum(dim=0)
        return super().forward(batch) + 1e-3 * self.sums.square().mean()


class Branches(CrossEntropy):
    """A local step branches on the value of a tensor."""

    def forward(self, batch: Forward) -> Tensor:
        loss = super().forward(batch)
        return loss if loss > 1 else 2 * loss


class ReadsAValue(CrossEntropy):
    """A local step makes a number of a tensor."""

    def forward(self, batch: Forward) -> Tensor:
        loss = super().forward(batch)
        return loss * loss.item()


class Failing(Loss):
    """It raises, in a function that it calls."""

    def forward(self, batch: Forward) -> Tensor:
        return batch.mean(_beyond_the_end(batch.logits))


def _beyond_the_end(logits: Tensor) -> Tensor:
    return [logits][1]


class InOneProcess(Aggregator):
    """It has no hooks for several processes, and returns the first update without a weight."""

    def __init__(self, weighting: str = "") -> None:
        self.updates: list[Update] = []

    def add(self, update: Update, current: Tensors) -> None:
        self.updates.append(update)

    def merge(self, current: Tensors) -> Tensors:
        updates, self.updates = self.updates, []
        return {name: value for name, value in updates[0].weights.items() if "head" not in name}


class WrongWhenStacked(CrossEntropy):
    """Its measurement is a tensor only when clients train one after another."""

    def measure(self, batch: Forward) -> Tensors:
        samples = torch.ones(()) if batch.real is None else len(batch.targets)
        return {"samples": samples}  # type: ignore[dict-item]
