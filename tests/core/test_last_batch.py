import pytest

from fedexp.core.last_batch import KEEP, LastBatch

DROP, MERGE, MERGE_ONE = LastBatch(4, merges=False), LastBatch(4), LastBatch(2)


@pytest.mark.parametrize(
    ("samples", "keep", "drop", "merge", "merge_one"),
    [
        (0, [0], [0], [0], [0]),
        (1, [1], [1], [1], [1]),
        (3, [3], [3], [3], [3]),  # the only batch always stays
        (4, [4], [4], [4], [4]),
        (5, [4, 1], [4], [5], [5]),
        (6, [4, 2], [4], [6], [4, 2]),
        (8, [4, 4], [4, 4], [4, 4], [4, 4]),
        (9, [4, 4, 1], [4, 4], [4, 5], [4, 5]),
        (11, [4, 4, 3], [4, 4], [4, 7], [4, 4, 3]),
    ],
)
def test_the_lengths_of_the_batches(
    samples: int, keep: list[int], drop: list[int], merge: list[int], merge_one: list[int]
) -> None:
    for rule, expected in ((KEEP, keep), (DROP, drop), (MERGE, merge), (MERGE_ONE, merge_one)):
        assert rule.lengths(samples, 4) == expected


@pytest.mark.parametrize("rule", [KEEP, DROP, MERGE, MERGE_ONE])
def test_the_longest_batch_of_all_clients(rule: LastBatch) -> None:
    for most in range(1, 20):
        longest = max(max(rule.lengths(size, 4)) for size in range(1, most + 1))
        assert rule.longest(most, 4) == longest
