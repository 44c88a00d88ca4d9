"""The weights of FedPAC against hand values, a grid, and the conditions of an optimum."""

import numpy as np
import pytest
import torch

from fedexp.personalization.fedpac import collaboration_weights, combined, feature_statistics


def test_the_statistics_by_hand() -> None:
    """Two samples of class 0 with mean (2, 0), one of class 2; the shares are 2/3 and 1/3."""
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 6.0]])
    h, variance = feature_statistics(z, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(h, torch.tensor([[4 / 3, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    expected = (2 / 3 * 5 + 1 / 3 * 36 - 4 / 9 * 4 - 1 / 9 * 36) / 3
    assert variance.item() == pytest.approx(expected)


def test_the_variance_is_that_of_h_over_many_draws() -> None:
    """V estimates E ||h - E h||^2 of a client that draws n samples from a population."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (1000,), generator=draw)
    z = torch.randn(1000, 4, generator=draw) + labels.unsqueeze(1)
    found, variances = [], []
    for _ in range(2000):
        chosen = torch.randint(0, 1000, (20,), generator=draw)
        h, variance = feature_statistics(z[chosen], labels[chosen], 3)
        found.append(h)
        variances.append(variance)
    spread = torch.stack(found).var(dim=0).sum()
    # The mean of V is (1 - 1/n) of it: a sample's own spread is smaller than its population's.
    assert torch.stack(variances).mean().item() == pytest.approx(0.95 * spread.item(), rel=0.05)


def test_alike_clients_count_by_their_precision() -> None:
    """Without bias the smallest sum of alpha_j^2 V_j has alpha_j proportional to 1 / V_j."""
    h = torch.ones(3, 2, 4)
    found = collaboration_weights(h, torch.tensor([1.0, 2.0, 4.0]))
    assert found == pytest.approx(np.tile([4 / 7, 2 / 7, 1 / 7], (3, 1)))


def test_two_clients_by_hand() -> None:
    """alpha = (1 - b, b) minimises (1 - b)^2 V_0 + b^2 (V_1 + D): b = V_0 / (V_0 + V_1 + D)."""
    h = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]])
    found = collaboration_weights(h, torch.tensor([2.0, 3.0]))
    assert found[0, 1] == pytest.approx(2 / (2 + 3 + 25))
    assert found[1, 0] == pytest.approx(3 / (2 + 3 + 25))
    assert found.sum(axis=1) == pytest.approx([1, 1])


def objective(h: np.ndarray, v: np.ndarray, i: int, alpha: np.ndarray) -> float:
    """The paper's double sum, from its definition."""
    value = float((alpha**2 * v).sum())
    for c in range(h.shape[1]):
        for j in range(len(v)):
            for k in range(len(v)):
                value += alpha[j] * alpha[k] * float((h[i, c] - h[j, c]) @ (h[i, c] - h[k, c]))
    return value


def test_no_weights_on_a_grid_are_better() -> None:
    draw = np.random.default_rng(1)
    h, v = draw.normal(size=(3, 2, 4)) * 0.3, draw.uniform(0.1, 1, size=3)
    found = collaboration_weights(torch.as_tensor(h), torch.as_tensor(v))
    steps = np.linspace(0, 1, 41)
    grid = [np.array([a, b, 1 - a - b]) for a in steps for b in steps if a + b <= 1 + 1e-9]
    for i in range(3):
        best = objective(h, v, i, found[i])
        assert best <= min(objective(h, v, i, alpha) for alpha in grid)
        assert best < objective(h, v, i, np.eye(3)[i]) - 1e-3  # collaboration pays


@pytest.mark.parametrize(("clients", "scale"), [(12, 1e-4), (12, 1.0), (12, 1e4), (40, 1.0)])
def test_the_weights_meet_the_conditions_of_an_optimum(clients: int, scale: float) -> None:
    """The gradient is the same for all positive weights, and not smaller for the others."""
    draw = np.random.default_rng(2)
    h = scale * draw.normal(size=(clients, 3, 5))
    v = scale**2 * draw.uniform(0.5, 2, size=clients)
    found = collaboration_weights(torch.as_tensor(h), torch.as_tensor(v))
    assert (found >= 0).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(clients))
    for i, alpha in enumerate(found):
        away = (h[i] - h).reshape(clients, -1)
        gradient = (np.diag(v) + away @ away.T) @ alpha / scale**2
        used = alpha > 0
        assert gradient[used] == pytest.approx(np.full(used.sum(), gradient[used].mean()), rel=1e-6)
        assert (gradient[~used] >= gradient[used].mean() - 1e-6).all()


def test_clients_without_any_spread_get_weights_too() -> None:
    found = collaboration_weights(torch.zeros(2, 2, 2), torch.zeros(2))
    assert found.sum(axis=1) == pytest.approx([1, 1])


def test_tensors_are_combined_in_their_dtype() -> None:
    found = combined([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])], np.array([0.25, 0.75]))
    assert torch.equal(found, torch.tensor([2.5, 5.0]))
