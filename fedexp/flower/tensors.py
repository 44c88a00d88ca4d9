"""Tensors as Flower arrays: type, shape and raw bytes. Nothing is pickled."""

import sys
from math import prod

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.flower.refused import RefusedError

_FORMAT = f"fedexp.raw.{sys.byteorder}"
_TYPES = {
    str(each).removeprefix("torch."): each
    for each in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


def pack(tensors: Tensors) -> ArrayRecord:
    """Pack the tensors into one record, in the same order."""
    return ArrayRecord({name: _array(value) for name, value in tensors.items()})


def unpack(record: ArrayRecord, device: torch.device) -> Tensors:
    """Inverse of ``pack``, on ``device``. Raises RefusedError if an array is malformed."""
    return {name: _tensor(name, array).to(device) for name, array in record.items()}


def _array(value: Tensor) -> Array:
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    name = str(value.dtype).removeprefix("torch.")
    return Array(name, tuple(value.shape), _FORMAT, raw.numpy().tobytes())


def _tensor(name: str, array: Array) -> Tensor:
    kind = _TYPES.get(array.dtype)
    if array.stype != _FORMAT or kind is None:
        raise RefusedError(f"sent {name}, which is no tensor in the format {_FORMAT}")
    shape = tuple(array.shape)
    if min(shape, default=0) < 0 or prod(shape) * kind.itemsize != len(array.data):
        raise RefusedError(
            f"sent {name} with {len(array.data)} bytes, which do not fit {shape} {kind}"
        )
    if not array.data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(array.data), dtype=kind).reshape(shape)
