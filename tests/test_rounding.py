from decimal import ROUND_FLOOR, Decimal

import pytest

from fedexp.rounding import rounded_down


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [
        (0.29, 100, 29),  # 28.999999999999996 in floats
        (0.29, 100_000_000, 29_000_000),
        (0.57, 100, 57),
        (1 - 0.9, 10, 1),
        (1 / 3, 3, 1),
        (0.25, 10, 2),
        (0.999, 10, 9),
        (0.0, 7, 0),
        (1, 7, 7),
        (0.5, 0, 0),
    ],
)
def test_a_share_is_rounded_down(share: float, count: int, expected: int) -> None:
    assert rounded_down(share, count) == expected


def test_every_share_of_four_decimals_is_exact() -> None:
    for thousandths in range(0, 10_001, 7):
        share = thousandths / 10_000
        for count in (10, 100, 997, 10_000):
            exact = (Decimal(str(share)) * count).to_integral_value(ROUND_FLOOR)
            assert rounded_down(share, count) == exact
