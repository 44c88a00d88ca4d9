"""What every partition promises."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from support.partition_checks import TEN_BY_100, Partition, assert_complete, equal

from fedexp.data.partitions import (
    dirichlet,
    iid,
    multi_alpha,
    natural,
    nid2,
    per_client_alpha,
    shards,
)
from fedexp.data.partitions.released import dirichlet_fednh, dirichlet_recut
from fedexp.errors import InputError

EVERY: dict[str, Partition] = {
    "iid": lambda labels, **others: iid(len(labels), **others),
    "dirichlet": partial(dirichlet, beta=0.3),
    "dirichlet-balanced": partial(dirichlet, beta=0.3, balance=True),
    "dirichlet_fednh": partial(dirichlet_fednh, beta=0.3),
    "dirichlet_recut": partial(dirichlet_recut, beta=0.3, draw_seed=None),
    "shards": partial(shards, classes_per_client=2),
    "shards-random": partial(shards, classes_per_client=2, holders="random"),
    "nid2": nid2,
    "nid2-equal": partial(nid2, sharing="equal_sizes"),
    "multi_alpha": partial(multi_alpha, alphas=[0.01, 1.0]),
    "multi_alpha-published": partial(
        multi_alpha, alphas=[0.01, 1.0], parts="class_balanced", balance=True, min_share=0.2
    ),
    "natural": partial(natural, take="group"),
    "per_client_alpha": partial(per_client_alpha, alphas=[0.01, 50]),
}


every_partition = pytest.mark.parametrize("function", EVERY.values(), ids=EVERY.keys())


@every_partition
def test_is_complete_and_a_pure_function_of_the_seed(function: Partition) -> None:
    first = function(TEN_BY_100, num_clients=7, seed=3)
    again = function(TEN_BY_100.copy(), num_clients=7, seed=3)
    other = function(TEN_BY_100, num_clients=7, seed=4)
    assert_complete(first, 1000, 7)
    assert equal(first, again)
    assert not equal(first, other)


def test_labels_may_skip_classes() -> None:
    labels = np.repeat([2, 5], 10)
    assert [sorted(set(labels[index])) for index in nid2(labels, 2, seed=0)] == [[2, 5]] * 2
    assert sorted(len(set(labels[index])) for index in shards(labels, 4, 1, seed=0)) == [1] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dirichlet(TEN_BY_100, 10, 0.3, 0, min_size=101),
            r"^partition.min_size=101: 1000 samples are too few for clients.count=10$",
        ),
        (
            lambda: dirichlet(np.zeros(100, dtype=int), 2, 1e-9, 0, min_size=1, max_tries=5),
            r"^partition.min_size=1: not reached in partition.max_tries=5 draws with "
            r"partition.beta=1e-09 and clients.count=2; the smallest client had at most 0 samples$",
        ),
        (
            lambda: shards(TEN_BY_100, 3, 2, 0),
            r"^partition.classes_per_client=2 with clients.count=3: the data have 10 classes",
        ),
        (
            lambda: shards(np.array([0, 0, 0, 1]), 2, 2, 0),
            r"^partition.classes_per_client=2 .*: class 1 has 1 samples for 2 holders$",
        ),
        (lambda: nid2(TEN_BY_100, 1, 0), r"^clients.count=1: partition=nid2 needs at least 2$"),
        (
            lambda: multi_alpha(TEN_BY_100, 1, [0.1, 1.0], 0),
            r"^partition.alphas=\[0.1, 1.0\]: should have at most clients.count=1 values",
        ),
        (
            lambda: per_client_alpha(TEN_BY_100, 3, [1.0, 0.1], 0),
            r"^partition.alphas=\[1.0, 0.1\]: the first value must not be the larger one$",
        ),
        (
            lambda: natural(None, 2, 0),
            r"^partition=natural: this dataset has no user ids.* data\.user=COLUMN",
        ),
        (
            lambda: natural(np.array(["a", "b"]), 3, 0),
            r"^clients.count=3: partition=natural allows at most 2, the number of users, or more "
            r"with partition.split_users=even; clients.per_round is at most clients.count$",
        ),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call()
