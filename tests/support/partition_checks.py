"""What tests of partitions share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

Indices = list[np.ndarray]
Partition = Callable[..., Indices]

TEN_BY_100 = np.tile(np.arange(10), 100)

quick = settings(max_examples=40, deadline=None)
label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
clients_and_seed: dict[str, Any] = {
    "num_clients": st.integers(1, 12),
    "seed": st.integers(0, 2**31),
}


def assert_complete(clients: Indices, num_samples: int, num_clients: int) -> None:
    """Nothing lost, nothing twice, one sorted int64 array for each client."""
    assert len(clients) == num_clients
    assert sorted(np.concatenate(clients).tolist()) == list(range(num_samples))
    for index in clients:
        assert index.dtype == np.int64
        assert np.all(np.diff(index) > 0)


def equal(one: Indices, other: Indices) -> bool:
    return all(map(np.array_equal, one, other))
