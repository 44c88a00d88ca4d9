"""Digests of the data of a run as it was read, to compare with the data of another reading."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedexp.data.federated import FederatedData
from fedexp.data.samples import Samples

MOST_BYTES = 2**24
"""Bytes of a split's inputs that are hashed (16 MiB): about 0.02 seconds."""


def fingerprint(data: FederatedData) -> dict[str, Any]:
    """Digests of the samples and of the partition.

    Of inputs beyond 16 MiB, evenly spaced samples are hashed; ``hashed`` says how many. All labels
    and all clients' positions are hashed. Of clients whose samples are not in memory, only the
    sizes and the known class counts are hashed.

    Returns:
        ``train`` and ``test`` with ``samples``, ``hashed`` and ``digest``; and ``partition``.
    """
    return {
        "train": _of_samples(data.train),
        "test": _of_samples(data.test),
        "partition": _of_partition(data),
    }


def _of_samples(samples: Samples) -> dict[str, Any]:
    count = len(samples)
    inputs, size = samples.inputs, samples.inputs.nbytes
    hashed = count if size <= MOST_BYTES else max(1, count * MOST_BYTES // size)
    if hashed < count:
        spaced = torch.linspace(0, count - 1, hashed, dtype=torch.float64).round().long()
        inputs = inputs.index_select(0, spaced.to(inputs.device))
    digest = _digest([torch.tensor(samples.inputs.shape), inputs, samples.targets])
    return {"samples": count, "hashed": hashed, "digest": digest}


def _of_partition(data: FederatedData) -> str:
    if not data.can_leave_out:  # the samples of each client are elsewhere
        return _digest([data.sizes, data.counted, data.counted_classes])
    clients = [*data.clients, *data.held_out_clients.values()]
    columns = [
        [getattr(each, name) for each in clients]
        for name in ("train_index", "test_index", "validation_index")
    ]
    lengths = [torch.tensor([len(each) for each in column]) for column in columns]
    return _digest([*lengths, *(torch.cat(column) for column in columns)])


def _digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the types, shapes and bytes of the tensors."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        sha.update(content.numpy().data)
    return sha.hexdigest()
