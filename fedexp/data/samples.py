"""The samples of one split on a device, and subsets of these samples."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.data.dataset import TOKEN_TYPES, Split
from fedexp.data.preparations.images import pixel_constants

KEEP_BELOW = 2**29
"""Most bytes of normalised images that stay in memory (512 MiB); CIFAR's test set has 117 MiB."""


class Samples:
    """The samples of one split on a device; makes batches of normalised images or int64 token ids.

    Args:
        split: the samples.
        mean: mean of each image channel; empty for other inputs.
        std: standard deviation of each image channel; empty for other inputs.
        device: device of the tensors.
        keep_normalised: whether the first call of ``batches`` normalises and stores all images, if
            they take at most ``KEEP_BELOW`` bytes. This saves time if many models are scored on the
            split.

    Attributes:
        is_shared: whether a position means the same sample for every client. If so, one ``gather``
            may make the batches of several clients.
    """

    is_shared: ClassVar[bool] = True

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
        self._token_targets = None if split.targets is None else split.targets.to(device)
        scale, shift = pixel_constants(mean, std)
        self.scale, self.shift = scale.to(device), shift.to(device)
        images = self.inputs.dtype == torch.uint8
        self._keeps = keep_normalised and images and 4 * self.inputs.numel() <= KEEP_BELOW
        self._kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> Tensor:
        """The label of each of the n samples [n], or the targets of its L tokens [n, L]."""
        return self.labels if self._token_targets is None else self._token_targets

    def gather(
        self,
        index: Tensor,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> Batch:
        """The batch of the samples at ``index`` [B], augmented unless ``augment`` is None."""
        inputs = self.inputs.index_select(0, index)
        if augment is not None:
            inputs = augment(inputs)
        return self._prepared(inputs), self.targets.index_select(0, index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """Batches of all samples, or of the samples at ``index``, in order and not augmented."""
        if index is None:
            index = torch.arange(len(self), device=self.labels.device)
        for chunk in torch.split(index, batch_size):
            if self._keeps:
                yield self._normalised().index_select(0, chunk), self.targets.index_select(0, chunk)
            else:
                yield self.gather(chunk)

    def _prepared(self, inputs: Tensor) -> Tensor:
        """Normalise uint8 images, convert token ids to int64, and return other inputs unchanged."""
        if inputs.dtype == torch.uint8:
            return torch.addcmul(self.shift, inputs.float(), self.scale)
        return inputs.long() if inputs.dtype in TOKEN_TYPES else inputs

    def _normalised(self) -> Tensor:
        """All normalised images. A model may change its input, so give it a copy of the images."""
        if self._kept is None:
            with torch.inference_mode(False):  # backward passes may use the images too
                pieces = torch.split(self.inputs, 1000)
                self._kept = torch.cat([self._prepared(piece) for piece in pieces])
        return self._kept


class Subset:
    """Some samples of a split, for evaluation; they are not augmented.

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
        """The class of each of the m samples, [m]."""
        return self.samples.labels.index_select(0, self.index)

    @property
    def targets(self) -> Tensor:
        """The label of each of the m samples [m], or the targets of its L tokens [m, L]."""
        return self.samples.targets.index_select(0, self.index)

    def batches(self, batch_size: int, index: Tensor | None = None) -> Iterator[Batch]:
        """Batches of the subset, or of its samples at ``index``, in order and not augmented."""
        return self.samples.batches(batch_size, self.index if index is None else self.index[index])
