import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partition_checks import assert_complete, quick

from fedexp.data.partitions import natural


@quick
@given(
    users=st.lists(st.sampled_from(["ann", "bob", "cem", "dan", "eve"]), min_size=1, max_size=60),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_natural_keeps_a_users_samples_together(
    users: list[str], seed: int, data: st.DataObject
) -> None:
    num_clients = data.draw(st.integers(1, len(set(users))))
    clients = natural(np.array(users), num_clients, seed)
    assert_complete(clients, len(users), num_clients)
    held = [{users[sample] for sample in index} for index in clients]
    assert sum(map(len, held)) == len(set(users))
    assert max(map(len, held)) - min(map(len, held)) <= 1
