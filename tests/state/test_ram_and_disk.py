"""Tensors by name, of which only some fit into RAM."""

from pathlib import Path

import pytest
import torch

from fedexp.core.messages import Tensors
from fedexp.state.ram_and_disk import ServerTensors


def test_it_is_a_dictionary_in_ram_and_on_disk(tmp_path: Path) -> None:
    bound = 3 * 400  # three tensors of 100 float32
    plain: dict[str, Tensors] = {}
    store = ServerTensors(bound, tmp_path / "server")
    for name in "abcde":
        store[name] = plain[name] = {"x": torch.randn(100)}
    assert len(list(tmp_path.rglob("*.pt"))) == 2
    store["a"] = plain["a"] = {"x": torch.ones(100)}  # was on disk
    store["e"] = plain["e"] = {"y": torch.zeros(100)}  # was in RAM
    for kept in (store, plain):
        del kept["b"], kept["d"]
    assert list(store) == ["c", "a", "e"]
    assert len(store) == 3
    assert "b" not in store
    for name, tensors in plain.items():
        assert store[name].keys() == tensors.keys()
        assert all(torch.equal(store[name][key], value) for key, value in tensors.items())
    assert len(list(tmp_path.rglob("*.pt"))) == 1  # c, in whose place the new a came
    with pytest.raises(KeyError):
        store["b"]


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    store = ServerTensors(0, tmp_path / "server")
    store["a"] = {"x": torch.zeros(3)}
    assert (tmp_path / "server").exists()
    del store
    assert not (tmp_path / "server").exists()
