import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedexp.data.split import apportion, by_owner, class_counts, deal, hold_out, share, stratified
from fedexp.errors import InputError

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
label_arrays = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# apportion


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, [1, 1], [5, 5]),
        # exact 1.43, 2.86, 5.71: floors 1, 2, 5; the two left go to .86 and .71
        (10, [1, 2, 4], [1, 3, 6]),
        (3, [0.0, 1e-300, 1.0], [0, 0, 3]),
        (0, [1, 2], [0, 0]),
    ],
)
def test_apportion_gives_the_largest_remainders_first(
    total: int, weights: list[float], expected: list[int]
) -> None:
    assert apportion(total, np.array(weights), generator()).tolist() == expected


@quick
@given(
    st.integers(0, 10**6),
    st.lists(st.floats(0, 1), min_size=1, max_size=50)
    .map(np.array)
    .filter(lambda weights: weights.sum() > 1e-9),
    seeds,
)
def test_apportion_is_within_one_of_the_exact_share(
    total: int, weights: np.ndarray, seed: int
) -> None:
    counts = apportion(total, weights, generator(seed))
    assert counts.sum() == total
    assert np.all(counts >= 0)
    assert np.all(np.abs(counts - total * weights / weights.sum()) < 1 + 1e-6)


def test_apportion_breaks_ties_at_random() -> None:
    winners = [apportion(1, np.ones(4), generator(seed)).argmax() for seed in range(200)]
    assert np.bincount(winners, minlength=4).min() > 25


# deal, by_owner, class_counts


def test_by_owner_lists_each_clients_samples_and_leaves_out_the_others() -> None:
    clients = by_owner(np.array([2, 0, 3, 0, 2]), num_clients=3)
    assert [index.tolist() for index in clients] == [[1, 3], [], [0, 4]]


@quick
@given(label_arrays, st.integers(1, 6), seeds)
def test_deal_gives_what_was_asked_and_nothing_twice(
    labels: np.ndarray, num_clients: int, seed: int
) -> None:
    shares = [
        generator(seed).multinomial(n, [1 / (num_clients + 1)] * (num_clients + 1))
        for n in np.bincount(labels, minlength=5)
    ]
    asked = np.array(shares).T[:num_clients]
    clients = deal(labels, asked, generator(seed))
    assert np.array_equal(class_counts(labels, clients, 5), asked)
    dealt = np.concatenate(clients)
    assert len(set(dealt.tolist())) == len(dealt)


def test_deal_chooses_samples_at_random() -> None:
    chosen = [deal(np.zeros(4, dtype=int), np.array([[1]]), generator(s))[0][0] for s in range(200)]
    assert np.bincount(chosen, minlength=4).min() > 25


def test_class_counts_by_hand() -> None:
    labels = np.array([0, 2, 2, 1, 0])
    counts = class_counts(labels, [np.array([0, 1, 2]), np.array([], dtype=int)], num_classes=4)
    assert counts.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0]]
    assert counts.dtype == np.int64


# share


def test_share_by_hand() -> None:
    labels = np.array([0] * 10 + [1] * 6 + [2] * 5)
    counts = np.array([[30, 0, 0], [10, 7, 0], [10, 7, 0]])
    clients = share(labels, counts, generator())
    # 10 of class 0 as 3:1:1, 6 of class 1 as 0:1:1; nobody holds class 2.
    assert class_counts(labels, clients, 3).tolist() == [[6, 0, 0], [2, 3, 0], [2, 3, 0]]


@quick
@given(
    label_arrays,
    st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=6).map(
        np.array
    ),
    seeds,
)
def test_share_gives_held_classes_away_entirely_and_once(
    labels: np.ndarray, counts: np.ndarray, seed: int
) -> None:
    clients = share(labels, counts, generator(seed))
    given_away = class_counts(labels, clients, 5)
    for label in range(5):
        total, held = np.sum(labels == label), counts[:, label].sum()
        assert given_away[:, label].sum() == (total if held else 0)
        for client in range(len(counts)):
            exact = total * counts[client, label] / held if held else 0
            assert abs(given_away[client, label] - exact) < 1
    dealt = np.concatenate(clients)
    assert len(set(dealt.tolist())) == len(dealt)


def test_share_depends_on_the_generator_alone() -> None:
    labels, counts = np.tile(np.arange(3), 20), np.ones((4, 3), dtype=np.int64)
    first, again, other = (share(labels, counts, generator(seed)) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


# stratified


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ([50, 50], 10, [5, 5]),
        ([60, 30, 10], 10, [6, 3, 1]),
        # exact 4.95, 0.05: the rare class is kept
        ([99, 1], 5, [4, 1]),
        # exact 2.91, 0.03, 0.03, 0.03
        ([97, 1, 0, 1, 1], 4, [1, 1, 0, 1, 1]),
        ([3, 2], 5, [3, 2]),
    ],
)
def test_stratified_keeps_the_proportions_and_every_class(
    sizes: list[int], size: int, expected: list[int]
) -> None:
    labels = generator().permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept = stratified(labels, size, seed=0)
    assert np.bincount(labels[kept], minlength=len(sizes)).tolist() == expected
    assert np.all(np.diff(kept) > 0)


@quick
@given(label_arrays, seeds, st.data())
def test_stratified_has_the_asked_size(labels: np.ndarray, seed: int, data: st.DataObject) -> None:
    classes = set(labels.tolist())
    size = data.draw(st.integers(len(classes), len(labels)))
    kept = stratified(labels, size, seed)
    assert len(set(kept.tolist())) == size
    assert set(labels[kept].tolist()) == classes
    assert np.array_equal(kept, stratified(labels, size, seed))


def test_stratified_draws_other_samples_with_another_seed() -> None:
    labels = np.tile(np.arange(4), 50)
    assert not np.array_equal(stratified(labels, 40, seed=1), stratified(labels, 40, seed=2))


@pytest.mark.parametrize("size", [2, 7])
def test_stratified_rejects_impossible_sizes(size: int) -> None:
    message = rf"^data.subset={size}: must be between 3 \(one sample per class\) and 6 \(the whole"
    with pytest.raises(InputError, match=message):
        stratified(np.array([0, 0, 1, 1, 4, 4]), size, seed=0)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.37, 0.999])
def test_hold_out_is_stratified_and_leaves_every_class_in_training(fraction: float) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    clients = [np.arange(0, 300), np.arange(300, 303), np.arange(303, 303), np.arange(303, 400)]
    train, validation = hold_out(labels, clients, fraction, seed=0)
    for index, kept, held in zip(clients, train, validation, strict=True):
        assert sorted([*kept, *held]) == index.tolist()
        assert kept.dtype == held.dtype == np.int64
        assert np.all(np.diff(kept) > 0)
        assert np.all(np.diff(held) > 0)
        assert set(labels[kept]) == set(labels[index])
        all_of, held_of = (np.bincount(labels[each], minlength=5) for each in (index, held))
        wanted = int(fraction * len(index)) / max(len(index), 1) * all_of
        at_most = np.maximum(all_of - 1, 0)
        assert np.all(held_of <= at_most)
        assert np.all((np.abs(held_of - wanted) < 1) | (held_of == at_most))


def test_hold_out_of_a_worked_example() -> None:
    """A fifth of 10, 5 and 1 samples is int(3.2) = 3: two, one and none by largest remainder."""
    labels = np.repeat([0, 1, 2], [10, 5, 1])
    train, validation = hold_out(labels, [np.arange(16)], 0.2, seed=0)
    assert np.bincount(labels[validation[0]], minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(labels[train[0]]).tolist() == [8, 4, 1]


def test_hold_out_is_keyed_by_seed_and_client() -> None:
    labels = np.tile(np.arange(4), 50)
    index = np.arange(100)
    one = hold_out(labels, [index, index + 100], 0.3, seed=0)[1]
    assert all(map(np.array_equal, one, hold_out(labels, [index, index + 100], 0.3, seed=0)[1]))
    assert not np.array_equal(one[0], hold_out(labels, [index], 0.3, seed=1)[1][0])
    assert not np.array_equal(one[0], one[1] - 100)
    assert np.array_equal(one[0], hold_out(labels, [index], 0.3, seed=0)[1][0])
