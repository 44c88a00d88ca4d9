"""Gaussians of features and the choice of beta, by hand, by scikit-learn and by Bayes' rule."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedexp.heads.discriminant import (
    Labelled,
    best_betas,
    class_priors,
    discriminant,
    gaussian,
    stratified,
)


def iris() -> Labelled:
    z, labels = load_iris(return_X_y=True)
    return torch.from_numpy(z), torch.from_numpy(labels).long()


def test_priors_of_missing_classes_are_small_but_not_zero() -> None:
    expected = torch.tensor([0.7501, 0.2501, 0.0001]) / 1.0003
    torch.testing.assert_close(class_priors(torch.tensor([3, 1, 0])), expected.double())
    assert class_priors(torch.zeros(4)).tolist() == pytest.approx([0.25] * 4)


def test_the_statistics_by_hand() -> None:
    """Class 0 has the mean (1, 0), class 1 one sample, and class 2 keeps the received mean."""
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    means, covariance = gaussian((z, torch.tensor([0, 0, 1])), torch.full((3, 2), 9.0), ridge=0.5)
    assert means.tolist() == [[1, 0], [1, 3], [9, 9]]
    assert covariance.tolist() == [[1.5, 0], [0, 0.5]]


def test_one_sample_has_no_spread() -> None:
    means, covariance = gaussian(
        (torch.ones(1, 2).double(), torch.tensor([1])), torch.zeros(2, 2), ridge=0.5
    )
    assert means.tolist() == [[0, 0], [1, 1]]
    assert covariance.tolist() == [[0.5, 0], [0, 0.5]]


def test_the_classifier_is_that_of_scikit_learn() -> None:
    """Its covariance has the divisor n, and its priors are not smoothed."""
    z, labels = iris()
    means, covariance = gaussian((z, labels), torch.zeros(3, 4), ridge=1e-300)
    rule = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-4).fit(z.numpy(), labels.numpy())
    shares = labels.bincount().double() / len(z)
    weight, bias = discriminant(means, covariance * (len(z) - 1) / len(z), shares)
    np.testing.assert_allclose(weight.numpy(), rule.coef_, rtol=1e-6)
    np.testing.assert_allclose(bias.numpy(), rule.intercept_, rtol=1e-6)


def heldout_loss(
    split: tuple[Labelled, Labelled],
    means: np.ndarray,
    covariance: np.ndarray,
    betas: tuple[float, float],
) -> float:
    """The cross-entropy of the held-out features by Bayes' rule and the densities of Gaussians."""
    training, (z, labels) = split
    own_means, own_covariance = (each.numpy() for each in gaussian(training, torch.zeros(3, 4), 1))
    mixed = betas[0] * own_means + (1 - betas[0]) * means
    spread = betas[1] * own_covariance + (1 - betas[1]) * covariance
    spread = (1 - 1e-4) * spread + 1e-4 * np.trace(spread) / 4 * np.eye(4)
    densities = [multivariate_normal(mean, spread).logpdf(z.numpy()) for mean in mixed]
    posteriors = log_softmax(np.stack(densities, axis=1) + np.log(1 / 3), axis=1)
    return float(-posteriors[np.arange(len(labels)), labels.numpy()].mean())


@pytest.mark.parametrize("separate", [False, True])
def test_the_betas_have_the_smallest_loss_of_a_grid(separate: bool) -> None:
    samples = iris()
    splits = stratified(samples, folds=2, seed=0)
    received = samples[0].mean(dim=0) + torch.randn(3, 4, generator=torch.manual_seed(3)).double()
    wide = 0.2 * torch.eye(4).double()
    found = best_betas(splits, received, wide, torch.ones(3).double() / 3, 1.0, separate)

    def loss(*betas: float) -> float:
        return sum(
            heldout_loss(split, received.numpy(), wide.numpy(), (betas[0], betas[-1]))
            for split in splits
        )

    grid = np.linspace(0, 1, 21)
    pairs = [(a, b) for a in grid for b in grid] if separate else [(a, a) for a in grid]
    assert loss(*found) <= min(loss(*pair) for pair in pairs) + 1e-3
    assert separate or found[0] == found[1]
    assert 0 < found[0] <= 1


def test_the_received_statistics_win_if_the_samples_mislead() -> None:
    """The labels of the training half are permuted, so that its means belong to other classes."""
    z, labels = iris()
    splits = [((z, (labels + 1) % 3), (z, labels))]
    means, covariance = gaussian((z, labels), torch.zeros(3, 4), 1e-6)
    priors = torch.ones(3).double() / 3
    assert best_betas(splits, means, covariance, priors, 1.0, True)[0] == pytest.approx(0, abs=1e-3)


def test_folds_have_all_classes_that_have_enough_samples() -> None:
    labels = torch.tensor([0, 0, 0, 2, 1, 1])
    z = torch.arange(6).double().unsqueeze(1)
    splits = stratified((z, labels), folds=2, seed=5)
    assert len(splits) == 2
    for training, heldout in splits:
        assert {*training[1].tolist()} == {*heldout[1].tolist()} == {0, 1}
        assert sorted([*training[0].flatten(), *heldout[0].flatten()]) == [0, 1, 2, 4, 5]
    assert stratified((z[2:5], labels[2:5]), folds=2, seed=5) == []
    priors = torch.ones(3).double() / 3
    assert best_betas([], z[:3], torch.eye(1).double(), priors, 1.0, True) == [0, 0]
