"""The samples of one split on a device, and a part of them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.data.dataset import TOKEN_TYPES, Split

KEEP_BELOW = 2**29
"""Bytes of normalised images that ``Samples`` keeps at most: 512 MiB; CIFAR's test set has 117."""


class Samples:
    """One split on a device; uint8 images are normalised batch by batch, token ids become int64.

    Args:
        split: the samples.
        mean: of each channel, of images.
        std: likewise.
        device: of the tensors.
        keep_normalised: whether ``batches`` normalises all images once and keeps them, if they take
            at most ``KEEP_BELOW`` bytes: for a split that many models are scored on.
    """

    def __init__(
        self,
        split: Split,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        keep_normalised: bool = False,
    ) -> None:
        self.inputs = split.inputs.to(device)
        self.labels = split.labels.to(device)
        self._of_tokens = None if split.targets is None else split.targets.to(device)
        # (x / 255 - mean) / std, as one multiplication and one addition per batch.
        scale = 1 / (255 * torch.tensor(std, dtype=torch.float32))
        shift = -torch.tensor(mean, dtype=torch.float32) / torch.tensor(std, dtype=torch.float32)
        self.scale = scale.view(1, -1, 1, 1).to(device)
        self.shift = shift.view(1, -1, 1, 1).to(device)
        images = self.inputs.dtype == torch.uint8
        self._keeps = keep_normalised and images and 4 * self.inputs.numel() <= KEEP_BELOW
        self._kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> Tensor:
        """What a model is to say: [n] labels, or [n, L] where each token has a target."""
        return self.labels if self._of_tokens is None else self._of_tokens

    def gather(
        self,
        index: Tensor,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> Batch:
        """The samples at ``index`` [B] as a batch, augmented if asked."""
        inputs = self.inputs.index_select(0, index)
        if augment is not None:
            inputs = augment(inputs)
        return self._prepared(inputs), self.targets.index_select(0, index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """All samples, or those at ``index``, in order and without augmentation."""
        if index is None:
            index = torch.arange(len(self), device=self.labels.device)
        for chunk in torch.split(index, batch_size):
            if self._keeps:
                yield self._normalised().index_select(0, chunk), self.targets.index_select(0, chunk)
            else:
                yield self.gather(chunk)

    def _prepared(self, inputs: Tensor) -> Tensor:
        """Some of the inputs as a model takes them."""
        if inputs.dtype == torch.uint8:
            return torch.addcmul(self.shift, inputs.float(), self.scale)
        return inputs.long() if inputs.dtype in TOKEN_TYPES else inputs

    def _normalised(self) -> Tensor:
        """All images as a model takes them; callers copy from it, as a model may change a batch."""
        if self._kept is None:
            with torch.inference_mode(False):  # also for passes with gradients
                pieces = torch.split(self.inputs, 1000)
                self._kept = torch.cat([self._prepared(piece) for piece in pieces])
        return self._kept


class Subset:
    """Some samples of a split, without augmentation; has what evaluation uses of ``Samples``.

    Args:
        samples: the split.
        index: [m] positions in the split.
    """

    def __init__(self, samples: Samples, index: Tensor) -> None:
        self.samples, self.index = samples, index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """[m] the class of each sample."""
        return self.samples.labels.index_select(0, self.index)

    @property
    def targets(self) -> Tensor:
        """[m] or [m, L], as ``Samples.targets``."""
        return self.samples.targets.index_select(0, self.index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """All of them, or those at ``index`` among them, in order and without augmentation."""
        return self.samples.batches(batch_size, self.index if index is None else self.index[index])
