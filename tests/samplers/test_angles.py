import math

import numpy as np
import pytest
import torch

from fedexp.samplers.heterogeneity import angles_between


def by_loop(vectors: np.ndarray) -> np.ndarray:
    found = np.zeros((len(vectors), len(vectors)))
    for i, u in enumerate(vectors):
        for j, v in enumerate(vectors):
            if i != j:
                cosine = math.fsum(u * v) / math.sqrt(math.fsum(u * u) * math.fsum(v * v))
                found[i, j] = math.acos(min(1.0, max(-1.0, cosine)))
    return found


def test_against_a_loop_in_float64() -> None:
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    found = angles_between(vectors, vectors)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, by_loop(vectors.double().numpy()), atol=1e-7)


def test_known_angles() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]])
    found = angles_between(vectors, vectors)
    expected = torch.tensor([[0, 2, 4, 1], [2, 0, 2, 1], [4, 2, 0, 3], [1, 1, 3, 0]]) * math.pi / 4
    torch.testing.assert_close(found, expected.double(), atol=1e-7, rtol=0)


def test_a_zero_vector_is_at_right_angles_to_all_others() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    found = angles_between(vectors, vectors)
    right = math.pi / 2
    expected = np.array([[right, right, right], [right, 0, right], [right, right, right]])
    assert found.numpy() == pytest.approx(expected, abs=1e-7)


def test_parallel_vectors_of_any_length_have_an_angle() -> None:
    # Without clipping about a tenth of these cosines are above 1.
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(200, 3, generator=generator)
    lengths = torch.logspace(-30, 30, 200).unsqueeze(1)
    found = angles_between(one, one * lengths).diagonal()
    assert found.max() < 1e-3  # arccos is steep at 1, and the products were rounded to float32
    opposite = angles_between(one, -one * lengths).diagonal()
    assert opposite.min() > math.pi - 1e-3
    everything = torch.cat([one, one * lengths, -one])
    assert not angles_between(everything, everything).isnan().any()


def test_rows_with_columns() -> None:
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    everything = angles_between(vectors, vectors)
    torch.testing.assert_close(angles_between(vectors[:3], vectors[3:]), everything[:3, 3:])
