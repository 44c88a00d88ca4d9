"""Samples that are drawn for testing."""

import numpy as np

from fedexp.data.train_test import by_class


def test_a_share_of_each_class_is_taken_as_it_is_written() -> None:
    """In floats 0.07 * 100 is 7.0000000000000009, which would be rounded up to 8."""
    train, test = by_class(np.arange(100) % 2, 0.07, 0)
    assert (len(train), len(test)) == (93, 7)
