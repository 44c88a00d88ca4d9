import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedexp.flower.refused import RefusedError
from fedexp.flower.tensors import pack, unpack

CPU = torch.device("cpu")


def test_all_types_come_back_to_the_bit() -> None:
    draws = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    sent = {
        "float": draws,
        "transposed": draws.T,
        "bf16": draws.bfloat16(),
        "half": draws.half(),
        "double": draws.double(),
        "scalar": torch.tensor(7),
        "nothing": torch.zeros(0, 5),
        "flags": draws > 0,
        "special": torch.tensor([torch.nan, torch.inf, -0.0]),
    }
    found = unpack(pack(sent), CPU)
    assert list(found) == list(sent)
    for name, value in sent.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].nan_to_num(9), value.nan_to_num(9))
    assert torch.signbit(found["special"][2])


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "numpy.ndarray", b"12345678"),
        Array("float32", (3,), "fedexp.raw.little", b"12345678"),
        Array("float32", (-1, -2), "fedexp.raw.little", b"12345678"),
        Array("object", (1,), "fedexp.raw.little", b"12345678"),
    ],
)
def test_refuses_what_is_no_tensor(array: Array) -> None:
    with pytest.raises(RefusedError, match="sent w"):
        unpack(ArrayRecord({"w": array}), CPU)
