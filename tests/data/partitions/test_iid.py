import numpy as np
from hypothesis import given
from support.partition_checks import assert_complete, clients_and_seed, label_arrays, quick

from fedexp.data.partitions import iid


@quick
@given(labels=label_arrays, **clients_and_seed)
def test_iid_sizes_differ_by_at_most_one(labels: np.ndarray, num_clients: int, seed: int) -> None:
    clients = iid(len(labels), num_clients, seed)
    assert_complete(clients, len(labels), num_clients)
    sizes = [len(index) for index in clients]
    assert max(sizes) - min(sizes) <= 1
