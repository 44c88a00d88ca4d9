"""Values between ranks arrive as they were, and bytes from strangers run nothing."""

import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedexp.core.messages import Message, Update
from fedexp.distributed import wire
from fedexp.distributed.wire import decode, encode

CPU = torch.device("cpu")


def sent(value: Any) -> Any:
    return decode(encode(value), CPU)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -(2**70), 0.1, float("inf"), "", "name", "ä\n\0", b"", b"\0\xff"),
        *([], (), {}, [[], ()], ["tensor", 0], ("list",), {"a": {"b": [1, (2.5, None)]}}),
        *({3: "by number", (1, 2): "by pair", None: b"x"}, Path("/a/b"), list(range(1000))),
    ],
    ids=repr,
)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    found = sent(value)
    assert found == value
    assert type(found) is type(value)


def test_numpy_numbers_arrive_as_plain_numbers() -> None:
    assert [type(each) for each in sent([np.float64(1.5), np.int64(3), np.bool_(True)])] == [
        float,
        int,
        bool,
    ]
    assert np.isnan(sent(np.nan))


TENSORS: dict[str, Tensor] = {
    "scalar": torch.tensor(2.5),
    "none": torch.zeros(3, 0, 2),
    "float64": torch.randn(7, dtype=torch.float64),
    "bfloat16": torch.randn(5, 3).bfloat16(),
    "int64": torch.arange(9).view(3, 3),
    "int8": torch.arange(3, dtype=torch.int8),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "not a number": torch.tensor([torch.nan, torch.inf, -0.0]),
    "transposed": torch.randn(4, 5).T,
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_to_the_bit_with_their_memory_layout(name: str) -> None:
    value = TENSORS[name]
    before, found, after = sent([1, {"x": (value,)}, torch.ones(1)])
    arrived = found["x"][0]
    assert (before, after) == (1, torch.ones(1))
    assert (arrived.dtype, arrived.shape, arrived.device) == (value.dtype, value.shape, CPU)
    assert arrived.stride() == value.stride()
    view = torch.uint8
    assert torch.equal(arrived.reshape(-1).view(view), value.reshape(-1).view(view))


@pytest.mark.parametrize(
    "value",
    [
        *(torch.randn(1, 4).expand(3, 4), torch.randn(6, 6)[::2, 1::3], torch.randn(9)[::3]),
        *(torch.randn(5, 4)[:, 1], torch.tensor(0.5).expand(2, 3)),
    ],
)
def test_parts_of_larger_tensors_arrive_without_the_rest(value: Tensor) -> None:
    assert torch.equal(sent(value), value)
    assert len(encode(value)) < 200


def test_a_reversed_numpy_array_arrives() -> None:
    assert sent(np.arange(4)[::-1]).tolist() == [3, 2, 1, 0]


def test_a_gradient_stays_behind() -> None:
    assert not sent(torch.ones(2, requires_grad=True)).requires_grad


def test_a_tensor_with_two_names_is_sent_once_and_stays_one() -> None:
    shared = torch.randn(1000)
    found = sent({"private": {"w": shared}, "personal_model": {"w": shared, "v": shared + 1}})
    assert found["private"]["w"] is found["personal_model"]["w"]
    assert len(encode([shared] * 5)) < 1.2 * len(encode(shared))


def test_arrays_arrive_as_arrays() -> None:
    value = np.arange(6.0).reshape(2, 3).T
    found = sent({"a": value})["a"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, value)


def test_dataclasses_arrive_as_they_were() -> None:
    update = Update(3, 40, {"w": torch.ones(2)}, {"head": {"p": torch.zeros(1)}}, {"loss": 0.5})
    found = sent([update])[0]
    assert isinstance(found, Update)
    assert (found.client, found.num_samples, found.metrics) == (3, 40, {"loss": 0.5})
    assert torch.equal(found.weights["w"], update.weights["w"])
    assert sent(Message(1, {})) == Message(1, {})


class Pair(NamedTuple):
    a: int


@dataclass
class Armed:
    """Its constructor would be code of the sender's choice."""

    path: str

    def __post_init__(self) -> None:
        raise AssertionError("was called")


class NoDataclass:
    pass


@pytest.mark.parametrize(
    "value",
    [Counter("aab"), {1, 2}, NoDataclass(), Armed, Pair(1), len, 1j, np.array([None]), iter([])],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be sent to other ranks|can't convert np.ndarray"):
        encode({"a": [value]})


def test_no_constructor_is_called() -> None:
    armed = object.__new__(Armed)
    armed.path = "x"
    assert sent(armed).path == "x"


def forged(structure: Any, layouts: Any = ()) -> Tensor:
    """Bytes of a stranger."""
    header = json.dumps([structure, list(layouts)]).encode()
    content = torch.zeros(16 + len(header) + 16 - len(header) % 16, dtype=torch.uint8)
    content[:8] = torch.tensor([len(header)]).view(torch.uint8)
    content[16 : 16 + len(header)] = torch.from_numpy(np.frombuffer(header, dtype=np.uint8).copy())
    return content


FORGED: dict[str, Callable[[], Tensor]] = {
    "function": lambda: forged(["object", "os", "system", ["dict", ["command", "x"]]]),
    "class": lambda: forged(["object", __name__, "NoDataclass", ["dict"]]),
    "module that is not imported": lambda: forged(["object", "antigravity", "x", ["dict"]]),
    "other fields": lambda: forged(["object", __name__, "Armed", ["dict", ["other", 1]]]),
    "tag": lambda: forged(["call", "os.system"]),
    "type": lambda: forged(None, [["load", [0], [0], True]]),
    "tensor that is absent": lambda: forged(["tensor", 0]),
    "more numbers than bytes": lambda: forged(["tensor", 0], [["int8", [10**6], [0], True]]),
    "length": lambda: torch.full((64,), 255, dtype=torch.uint8),
    "nothing": lambda: torch.zeros(0, dtype=torch.uint8),
    "pickle": lambda: torch.frombuffer(bytearray(pickle.dumps([1, 2]) * 8), dtype=torch.uint8),
}


@pytest.mark.parametrize("name", FORGED)
def test_bytes_of_strangers_run_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("unpickled")

    for function in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, function, refuse)
    before = set(sys.modules)
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        decode(FORGED[name](), CPU)
    assert set(sys.modules) == before


def test_every_changed_bit_is_an_error_or_another_value() -> None:
    """Never a crash, a hang or another kind of exception."""
    content = encode([{"a": torch.arange(3)}, Message(1, {}), ("x", 1.5)])
    outcomes: Counter[str] = Counter()
    for place in range(len(content)):
        for bit in range(8):
            changed = content.clone()
            changed[place] ^= 1 << bit
            try:
                decode(changed, CPU)
                outcomes["value"] += 1
            except (ValueError, TypeError, LookupError, RuntimeError, OverflowError, MemoryError):
                outcomes["error"] += 1
    assert outcomes["error"] > 100
    assert wire._ALIGNMENT >= 16  # of complex128
