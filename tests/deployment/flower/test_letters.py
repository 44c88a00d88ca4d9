import json

import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from fedexp.deployment.flower.letters import Answer, Introduction, RefusedError, Scores, pack, read
from fedexp.distributed.wire import encode


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
    found = read(pack("a", Answer(sent)), "a", Answer).tensors
    assert list(found) == list(sent)
    for name, value in sent.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].nan_to_num(9), value.nan_to_num(9))
    assert torch.signbit(found["special"][2])


def _sealed(content: bytes, stype: str = "fedexp.wire.little") -> RecordDict:
    records = pack("a")
    records["content"] = ArrayRecord({"content": Array("uint8", (len(content),), stype, content)})
    return records


def _values(**values: object) -> bytes:
    return encode(values).numpy().tobytes()


_HEADER = json.dumps([["object", "os", "system", ["dict"]], []]).encode()


@pytest.mark.parametrize(
    "records",
    [
        pack("a"),
        pack("a", Introduction(1, 2, "d")),
        _sealed(_values(tensors={"w": torch.zeros(2)}), "numpy.ndarray"),
        _sealed(_values(tensors={"w": [1.0, 2.0]})),
        _sealed(_values(tensors={"w": Scores(False, {}, {})})),
        _sealed(_values(tensors={"w": torch.zeros(64)})[:-16]),
        _sealed(len(_HEADER).to_bytes(8, "little") + bytes(8) + _HEADER),
        _sealed(b""),
    ],
)
def test_refuses_what_is_no_answer(records: RecordDict) -> None:
    with pytest.raises(RefusedError, match=r"^sent no valid Answer \(.*\)$"):
        read(records, "a", Answer)
