"""Turns values into bytes for other ranks: JSON for the structure, then the tensors' numbers.

Any process that reaches the ports of a run may send bytes to it. Unlike ``pickle``, ``decode``
never runs code that the bytes name: it makes objects only of dataclasses that are already imported,
and calls no constructor.
"""

import json
import sys
from dataclasses import fields, is_dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Tensors begin at multiples of this number of bytes, so that any type can be read in place."""


class _Layout(NamedTuple):
    """A tensor's type and layout.

    ``order`` lists the tensor's dimensions in their order in memory, ``shape`` their sizes.
    """

    dtype: str
    shape: list[int]
    order: list[int]
    on_cpu: bool


def encode(value: Any) -> Tensor:
    """``value`` as bytes [n], uint8 on the CPU.

    Raises:
        TypeError: ``value`` contains an object of another type than None, numbers, strings, paths,
            bytes, tensors, NumPy arrays, lists, tuples, dicts and dataclasses.
    """
    found: dict[int, tuple[int, Tensor]] = {}
    structure = _to_json(value, found)
    tensors = [tensor for _, tensor in found.values()]
    layouts = [_layout(each) for each in tensors]
    header = json.dumps([structure, layouts]).encode()
    pieces = [_raw(torch.tensor([len(header)])), _from_bytes(header)]
    for tensor, layout in zip(tensors, layouts, strict=True):
        pieces.append(_raw(tensor.detach().permute(layout.order).cpu()))
    starts = _starts([len(each) for each in pieces])
    content = torch.zeros(starts[-1], dtype=torch.uint8)
    for start, piece in zip(starts, pieces, strict=False):
        content[start : start + len(piece)] = piece
    return content


def decode(content: Tensor, device: torch.device) -> Any:
    """The value that ``encode`` turned into the bytes [n].

    Tensors keep their memory layout. Tensors from a CPU stay on the CPU; others go to ``device``.

    Raises:
        ValueError: the bytes are cut off, or name an unknown type or class.
    """
    length = int(content[:8].view(torch.int64))
    if not 0 <= length <= len(content):
        raise ValueError(f"a structure of {length} bytes in {len(content)} bytes")
    begin = _starts([8])[-1]
    structure, found = json.loads(content[begin : begin + length].numpy().tobytes())
    layouts = [_Layout(*each) for each in found]
    types = [_dtype(layout.dtype) for layout in layouts]
    sizes = [prod(a.shape) * dtype.itemsize for a, dtype in zip(layouts, types, strict=True)]
    tensors = []
    for layout, dtype, start, size in zip(
        layouts, types, _starts([8, length, *sizes])[2:], sizes, strict=False
    ):
        raw = content[start : start + size].view(dtype).view(layout.shape)
        tensor = raw.permute([layout.order.index(dim) for dim in range(len(layout.order))])
        tensors.append(tensor.clone() if layout.on_cpu else tensor.to(device))
    return _from_json(structure, tensors)


def _to_json(value: Any, tensors: dict[int, tuple[int, Tensor]]) -> Any:
    """The value for JSON: scalars are unchanged, all other values become [tag, ...].

    Each tensor is added once to ``tensors``: ``id`` of the tensor -> (place in the order of
    tensors, tensor).
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        place, _ = tensors.setdefault(id(value), (len(tensors), value))
        return ["tensor", place]
    if isinstance(value, np.ndarray):
        return ["array", _to_json(torch.from_numpy(value.copy()), tensors)]
    if isinstance(value, bytes):
        return ["bytes", _to_json(_from_bytes(value), tensors)]
    if isinstance(value, Path):
        return ["path", str(value)]
    if type(value) in (list, tuple, torch.Size):
        tag = "list" if isinstance(value, list) else "tuple"
        return [tag, *(_to_json(each, tensors) for each in value)]
    if type(value) is dict:
        return ["dict", *([_to_json(each, tensors) for each in pair] for pair in value.items())]
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        return ["object", type(value).__module__, type(value).__name__, _to_json(held, tensors)]
    raise TypeError(
        f"a {type(value).__name__} cannot be sent to other ranks; use numbers, strings, tensors, "
        "and lists, tuples, dicts or dataclasses of them"
    )


def _from_json(structure: Any, tensors: list[Tensor]) -> Any:
    """Inverse of ``_to_json``."""
    if not isinstance(structure, list):
        return structure
    tag, *content = structure
    match tag:
        case "tensor":
            return tensors[content[0]]
        case "array":
            return _from_json(content[0], tensors).numpy()
        case "bytes":
            return _from_json(content[0], tensors).numpy().tobytes()
        case "path":
            return Path(content[0])
        case "list":
            return [_from_json(each, tensors) for each in content]
        case "tuple":
            return tuple(_from_json(each, tensors) for each in content)
        case "dict":
            return {_from_json(k, tensors): _from_json(v, tensors) for k, v in content}
        case "object":
            module, name, held = content
            return _object(module, name, _from_json(held, tensors))
    raise ValueError(f"{tag} is no kind of value")


def _object(module: str, name: str, held: dict[str, Any]) -> Any:
    """An object of an imported dataclass with these fields; no code of the class is called."""
    kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(f"{module}.{name} is no imported dataclass")
    if held.keys() != {each.name for each in fields(kind)}:
        raise ValueError(f"{module}.{name} has other fields than {', '.join(held)}")
    made = object.__new__(kind)
    for key, value in held.items():
        object.__setattr__(made, key, value)
    return made


def _layout(tensor: Tensor) -> _Layout:
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    shape = [tensor.shape[dim] for dim in order]
    return _Layout(str(tensor.dtype).removeprefix("torch."), shape, order, tensor.is_cpu)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type of tensors")
    return found


def _raw(tensor: Tensor) -> Tensor:
    """The numbers of a CPU tensor as bytes."""
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _from_bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8))


def _starts(sizes: list[int]) -> list[int]:
    """The aligned offsets of consecutive pieces of these sizes, and the offset of the end."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return [0, *accumulate(padded)]
