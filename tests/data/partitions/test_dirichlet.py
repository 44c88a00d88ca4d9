import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.partition_checks import (
    TEN_BY_100,
    assert_complete,
    clients_and_seed,
    label_arrays,
    quick,
)

from fedexp.data.partitions import dirichlet
from fedexp.data.split import class_counts
from fedexp.errors import InputError


@quick
@given(
    labels=label_arrays,
    beta=st.sampled_from([1e-300, 1e-3, 0.09, 0.3, 1.0, 1e4]),
    balance=st.booleans(),
    **clients_and_seed,
)
def test_dirichlet_loses_nothing_at_any_beta(
    labels: np.ndarray, beta: float, balance: bool, num_clients: int, seed: int
) -> None:
    clients = dirichlet(labels, num_clients, beta, seed, balance=balance)
    assert_complete(clients, len(labels), num_clients)


@pytest.mark.parametrize("beta", [0.05, 0.3, 2.0])
def test_dirichlet_shares_have_the_mean_and_variance_of_dir_beta(beta: float) -> None:
    num_clients, labels = 5, np.zeros(1000, dtype=np.int64)
    draws = [dirichlet(labels, num_clients, beta, seed) for seed in range(400)]
    shares = np.array([[len(index) / 1000 for index in clients] for clients in draws])
    # Dir(beta) over N: mean 1/N, second moment (beta + 1) / (N (N beta + 1)).
    assert shares.mean(axis=0) == pytest.approx(np.full(num_clients, 1 / num_clients), abs=0.07)
    expected = (beta + 1) / (num_clients * (num_clients * beta + 1))
    assert (shares**2).mean() == pytest.approx(expected, rel=0.08)


def test_dirichlet_at_tiny_beta_gives_whole_classes_to_clients_and_favours_no_client() -> None:
    labels = np.repeat(np.arange(500), 2)
    counts = class_counts(labels, dirichlet(labels, 5, 1e-9, seed=0), 500)
    assert set(np.unique(counts)) == {0, 2}
    assert np.all(np.abs((counts > 0).sum(axis=1) - 100) < 40)


def test_balance_stops_full_clients() -> None:
    """At beta near zero every class goes to one client: balanced, each of ten gets one class."""
    plain = [len(index) for index in dirichlet(TEN_BY_100, 10, 1e-9, seed=0)]
    balanced = [len(index) for index in dirichlet(TEN_BY_100, 10, 1e-9, seed=0, balance=True)]
    assert max(plain) > 100
    assert balanced == [100] * 10


def test_min_size_draws_until_it_is_reached() -> None:
    free = dirichlet(TEN_BY_100, 10, 0.1, seed=0)
    bounded = dirichlet(TEN_BY_100, 10, 0.1, seed=0, min_size=30, max_tries=1000)
    assert min(map(len, free)) < 30 <= min(map(len, bounded))
    assert_complete(bounded, 1000, 10)


def test_a_thousand_clients_at_tiny_beta() -> None:
    labels = np.tile(np.arange(10), 6000)
    assert_complete(dirichlet(labels, 1000, 1e-3, seed=0), 60000, 1000)


def test_the_min_size_error_reports_the_best_draw() -> None:
    best = max(min(map(len, dirichlet(TEN_BY_100, 4, 0.5, seed))) for seed in range(3))
    with pytest.raises(
        InputError, match=r"the smallest client had at most (\d+) samples$"
    ) as caught:
        dirichlet(TEN_BY_100, 4, 0.5, 0, min_size=250, max_tries=50)
    assert best // 2 < int(str(caught.value).split()[-2]) < 250


def test_min_classes_draws_until_it_is_reached() -> None:
    free = class_counts(TEN_BY_100, dirichlet(TEN_BY_100, 10, 0.1, seed=0), 10)
    bounded = dirichlet(TEN_BY_100, 10, 0.1, seed=0, min_classes=3, max_tries=1000)
    assert (free > 0).sum(axis=1).min() < 3
    assert (class_counts(TEN_BY_100, bounded, 10) > 0).sum(axis=1).min() >= 3
    assert_complete(bounded, 1000, 10)


def test_min_classes_out_of_tries_reports_samples_and_classes() -> None:
    with pytest.raises(
        InputError,
        match=r"^partition.min_size=1 partition.min_classes=9: not reached in "
        r"partition.max_tries=2 draws with partition.beta=0.01 and clients.count=5; "
        r"the smallest client had at most \d+ samples and \d classes$",
    ):
        dirichlet(TEN_BY_100, 5, 0.01, 0, min_size=1, min_classes=9, max_tries=2)


def test_min_classes_beyond_the_classes_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^partition.min_classes=11: the data have 10 classes$"):
        dirichlet(TEN_BY_100, 5, 1.0, 0, min_classes=11)
