import numpy as np
import pytest
from scipy.stats import entropy
from support.partition_checks import assert_complete

from fedexp.data.partitions import per_client_alpha
from fedexp.errors import InputError


def test_entropies_go_from_one_class_to_balanced() -> None:
    labels = np.tile(np.arange(10), 2000)
    clients = per_client_alpha(labels, 200, [0.01, 50], seed=0)
    assert_complete(clients, len(labels), 200)
    entropies = [entropy(np.bincount(labels[index], minlength=10)) for index in clients]
    blocks = np.split(np.array(entropies), 5)
    means = [block.mean() for block in blocks]
    assert means == sorted(means)
    assert means[0] < 0.2 * np.log(10)
    assert means[4] > 0.95 * np.log(10)


def test_a_class_is_split_in_proportion_to_the_mixes() -> None:
    """Equal and large concentrations: all mixes are nearly even, so sizes are, too."""
    labels = np.repeat(np.arange(3), [900, 300, 60])
    clients = per_client_alpha(labels, 3, [1e6, 1e6], seed=1)
    for index in clients:
        np.testing.assert_allclose(np.bincount(labels[index]), [300, 100, 20], atol=2)


def test_one_client_has_everything() -> None:
    (index,) = per_client_alpha(np.arange(7) % 3, 1, [0.5, 0.5], seed=0)
    assert index.tolist() == list(range(7))


def test_a_class_that_no_mix_has_is_one_line() -> None:
    """With a tiny concentration a mix is one class, and the shares of the others are 0."""
    with pytest.raises(
        InputError, match=r"^partition\.alphas=.*: no mix of the 2 clients has class"
    ):
        per_client_alpha(np.arange(100) % 10, 2, [1e-9, 1e-9], seed=0)
