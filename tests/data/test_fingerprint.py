"""Digests of the data of a run as it was read."""

import numpy as np
import pytest
import torch

from fedexp.core.description import Description
from fedexp.data import fingerprint as module
from fedexp.data.dataset import Dataset, Split
from fedexp.data.federated import FederatedData
from fedexp.data.fingerprint import fingerprint

CPU = torch.device("cpu")


def data(first: float = 0.0, second: tuple[int, ...] = (2, 3)) -> FederatedData:
    """Four samples with two features at two clients."""
    inputs = torch.arange(8.0).view(4, 2)
    inputs[0, 0] = first
    split = Split(inputs, torch.tensor([0, 1, 0, 1]))
    clients = [np.array([0, 1]), np.array(second)]
    return FederatedData(
        Dataset(Description("toy", (2,), ("a", "b")), split, split),
        clients,
        clients,
        "none",
        0,
        CPU,
    )


def test_each_change_shows_in_its_digest() -> None:
    first = fingerprint(data())
    assert fingerprint(data()) == first
    changed = fingerprint(data(first=1e-6))
    assert changed["partition"] == first["partition"]
    assert changed["train"]["digest"] != first["train"]["digest"]
    dealt = fingerprint(data(second=(2,)))
    assert dealt["partition"] != first["partition"]
    assert dealt["train"] == first["train"]


def test_of_large_inputs_some_samples_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 16)  # two samples
    found = fingerprint(data())["train"]
    assert (found["samples"], found["hashed"]) == (4, 2)
    assert fingerprint(data(first=1.0))["train"]["digest"] != found["digest"]  # the first is hashed
