"""Synthetic(alpha, beta) against plain loops over the same draws, and against its moments."""

import numpy as np
import pytest
import torch

from fedexp.core.randomness import numpy_generator
from fedexp.data.readers.synthetic import Synthetic


def source(
    alpha: float = 0.5,
    beta: float = 2.0,
    iid: bool = False,
    size_max: int | None = None,
    seed: int = 3,
) -> Synthetic:
    return Synthetic(0.1, 10, alpha, beta, iid, 4.0, 2.0, 50, size_max, seed)


def test_a_client_follows_the_formula_sample_by_sample() -> None:
    drawn = source().draw(7, 30)
    generator = numpy_generator(3, "synthetic/client", 7)
    u, centre = 0.5 * generator.standard_normal(), 2.0 * generator.standard_normal()
    v = [centre + generator.standard_normal() for _ in range(60)]
    weight = [[u + generator.standard_normal() for _ in range(10)] for _ in range(60)]
    bias = [u + generator.standard_normal() for _ in range(10)]
    for inputs, label in zip(drawn.inputs.tolist(), drawn.labels.tolist(), strict=True):
        for j, found in enumerate(inputs):
            std = (j + 1) ** (-1.2 / 2)
            g = float(generator.standard_normal(dtype=np.float32))
            assert found == pytest.approx(v[j] + std * g, abs=1e-5)
        logits = [bias[c] + sum(x * weight[j][c] for j, x in enumerate(inputs)) for c in range(10)]
        assert label == logits.index(max(logits))


def test_feature_j_has_variance_j_to_the_minus_1_2_within_a_client() -> None:
    variances = source().draw(0, 20_000).inputs.double().var(dim=0).numpy()
    np.testing.assert_allclose(variances, np.arange(1, 61) ** -1.2, rtol=0.06)


def test_beta_is_the_standard_deviation_of_the_clients_centres() -> None:
    """The mean over 60 features of v_k has variance beta^2 + 1 / 60."""
    centres = torch.stack([source(beta=2.0).draw(k, 2).inputs.mean() for k in range(2000)])
    assert centres.std().item() == pytest.approx((4 + 1 / 60) ** 0.5, rel=0.06)
    still = torch.stack([source(beta=0.0).draw(k, 50).inputs.mean() for k in range(500)])
    assert still.std().item() == pytest.approx((1 / 60) ** 0.5, rel=0.12)


def test_sizes_are_lognormal_plus_50_and_do_not_depend_on_their_number() -> None:
    sizes = source().totals(100_000)
    assert sizes.min() == 50
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), abs=2)
    logs = np.log(sizes[sizes > 150] - 49.5)  # P(g > (ln 100 - 4) / 2) = 0.381
    assert len(logs) / len(sizes) == pytest.approx(0.381, abs=0.01)
    assert (sizes > 50 + np.exp(8)).mean() == pytest.approx(0.02275, abs=0.003)
    assert np.array_equal(source().totals(7), sizes[:7])
    assert np.array_equal(source(size_max=200).totals(1000), sizes[:1000].clip(max=200))


def test_iid_clients_have_one_model() -> None:
    iid = source(alpha=0.0, beta=0.0, iid=True)
    shared = numpy_generator(3, "synthetic/shared").standard_normal((61, 10))
    for client in (0, 1):
        drawn = iid.draw(client, 2000)
        logits = drawn.inputs.double().numpy() @ shared[:60] + shared[60]
        assert np.array_equal(drawn.labels.numpy(), logits.argmax(axis=1))
        assert drawn.inputs.mean(dim=0).abs().max() < 0.1
    assert not torch.equal(iid.draw(0, 5).inputs, iid.draw(1, 5).inputs)


def test_samples_depend_on_seed_and_client_alone() -> None:
    first = source().draw(4, 20)
    source().draw(5, 20)
    again = source().draw(4, 10)
    assert torch.equal(first.inputs[:10], again.inputs)
    assert torch.equal(first.labels[:10], again.labels)
    assert not torch.equal(first.inputs, source(seed=4).draw(4, 20).inputs)
    assert first.inputs.dtype == torch.float32
    assert first.labels.dtype == torch.int64
