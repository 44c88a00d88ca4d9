"""Parts that work on a CPU; most of them break one rule of an accelerator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.losses.cross_entropy import CrossEntropy


class Mask(CrossEntropy):
    """Multiplies by a mask that it draws on the CPU."""

    def forward(self, batch: Forward) -> Tensor:
        kept = torch.arange(batch.logits.shape[1]) < 9
        return super().forward(batch) + (batch.logits * kept).square().mean()


class KeptTensor(CrossEntropy):
    """Keeps a tensor in an attribute, which stays on the CPU when the model moves."""

    def setup(self, setting: Setting) -> None:
        self.scale = torch.full((setting.num_classes,), 2.0)

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) + (batch.logits * self.scale).square().mean()


class SetInBegin(CrossEntropy):
    """Sets an attribute in ``begin``, which breaks no rule because all clients set the same."""

    def setup(self, setting: Setting) -> None:
        self.scale = torch.ones(())

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        self.scale = torch.full((), 2.0, device=client.data.class_counts.device)

    def forward(self, batch: Forward) -> Tensor:
        return super().forward(batch) * self.scale


class InNumPy(CrossEntropy):
    """Computes a report with NumPy."""

    def report(self, client: Client, memory: Memory) -> Tensors:
        return {"mean": torch.tensor(self._mean(client))}

    def _mean(self, client: Client) -> float:
        return float(client.data.class_counts.numpy().mean())


class ReportOnCpu(CrossEntropy):
    """Reports a tensor of the CPU, and adds it to one of the device."""

    def report(self, client: Client, memory: Memory) -> Tensors:
        return {"prior": torch.ones(10), "seen": client.data.class_counts}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.counts = [each.extras["seen"] + each.extras["prior"] for each in updates]


class OnCpuAfterResume(CrossEntropy):
    """Adds reports to a sum, which is on the CPU after a resume."""

    saved = ("counts",)
    counts: Tensor | int = 0

    def report(self, client: Client, memory: Memory) -> Tensors:
        return {"counts": client.data.class_counts}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.counts = self.counts + sum(each.extras["counts"] for each in updates)


class OneNumberOnCpu(CrossEntropy):
    """Reports a number on the CPU, which breaks no rule."""

    def report(self, client: Client, memory: Memory) -> Tensors:
        return {"size": torch.tensor(float(client.data.num_samples))}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        self.total = sum(each.extras["size"].item() for each in updates)


class Waits(CrossEntropy):
    """Reads a value in each training step."""

    def forward(self, batch: Forward) -> Tensor:
        loss = super().forward(batch)
        self.last = loss.item()
        return loss
