import math
from collections import Counter

import numpy as np
import pytest
import torch

from fedexp.samplers.heterogeneity import (
    Profiles,
    distances_within,
    draw_cohort,
    estimated_entropy,
    label_entropy,
)


def profiles(updates: torch.Tensor, temperature: float) -> Profiles:
    return Profiles(estimated_entropy(updates, temperature), updates)


def probabilities(means: list[float], gamma: float) -> list[float]:
    weights = [math.exp(gamma * mean) for mean in means]
    return [weight / sum(weights) for weight in weights]


def entropy_by_hand(row: np.ndarray, temperature: float) -> float:
    weights = [math.exp((x - max(row)) / temperature) for x in row]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w > 0)


def test_entropy_by_hand() -> None:
    thirds = 0.5 * torch.log(torch.tensor([[1.0, 1.0, 2.0]]))  # softmax(./0.5) = 1/4, 1/4, 1/2
    assert estimated_entropy(thirds, 0.5).item() == pytest.approx(1.5 * math.log(2))
    assert estimated_entropy(torch.zeros(2, 7), 0.01).tolist() == pytest.approx([math.log(7)] * 2)
    sharp = torch.tensor([[1000.0, 0.0, -1000.0]])
    assert estimated_entropy(sharp, 0.0015).item() == 0.0


def test_entropy_of_a_direction_by_hand() -> None:
    # Lengths 5 and 13: softmax of (0.6, 0.8) / 0.2 and of (5/13, 12/13) / 0.2.
    updates = torch.tensor([[3.0, 4.0], [0.5, 1.2], [0.0, 0.0]])
    first, second = 1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(35 / 13))
    expected = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (first, second)]
    found = estimated_entropy(updates, 0.2, "client")
    assert found.tolist() == pytest.approx([*expected, math.log(2)])


def test_estimates_relative_to_the_length_do_not_fade() -> None:
    updates = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4]).unsqueeze(1)
    expected = estimated_entropy(updates, 0.1, "client")
    torch.testing.assert_close(estimated_entropy(lengths * updates, 0.1, "client"), expected)
    fixed = estimated_entropy(1e-6 * updates, 0.1)
    assert fixed.tolist() == pytest.approx([math.log(5)] * 6)


def test_distance_against_a_loop_in_float64() -> None:
    updates = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    lam, temperature = 0.3, 0.2
    rows = updates.numpy()
    expected = np.zeros((6, 6))
    for u in range(6):
        for k in range(6):
            cosine = rows[u] @ rows[k] / math.sqrt((rows[u] @ rows[u]) * (rows[k] @ rows[k]))
            gap = abs(entropy_by_hand(rows[u], temperature) - entropy_by_hand(rows[k], temperature))
            expected[u, k] = lam * math.acos(min(1.0, max(-1.0, cosine))) + (1 - lam) * gap
    found = distances_within(profiles(updates, temperature), lam)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert torch.equal(found, found.T)
    assert torch.equal(found.diagonal(), torch.zeros(6, dtype=torch.float64))


def test_distances_of_zero_and_parallel_updates() -> None:
    zero, one = torch.zeros(4), torch.tensor([0.1, -0.2, 0.3, 0.1])
    updates = torch.stack([zero, one, 3 * one, -one, zero])
    found = distances_within(profiles(updates, 0.5), 0.1)
    entropy = [entropy_by_hand((f * one).double().numpy(), 0.5) for f in (0, 1, 3, -1)]
    assert found[0, 4] == pytest.approx(0.1 * math.pi / 2)
    assert found[0, 1] == pytest.approx(0.1 * math.pi / 2 + 0.9 * (entropy[0] - entropy[1]))
    assert found[1, 2] == pytest.approx(0.9 * (entropy[1] - entropy[2]), abs=1e-6)
    assert found[1, 3] == pytest.approx(0.1 * math.pi + 0.9 * abs(entropy[1] - entropy[3]))
    assert not found.isnan().any()


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1e6])
def test_a_clusters_odds_come_from_the_mean_of_its_entropies(gamma: float) -> None:
    class Odds(np.random.Generator):
        seen: np.ndarray

        def choice(self, a: object, p: np.ndarray) -> int:  # type: ignore[override]
            self.seen = p
            return 1

    entropies, clusters = torch.tensor([1.0, 3.0, 0.5, 0.0]), torch.tensor([1, 1, 0, 2])
    generator = Odds(np.random.PCG64(0))
    draw_cohort(entropies, clusters, torch.ones(4), gamma, 1, generator)
    shifted = [mean - 2.0 for mean in (0.5, 2.0, 0.0)]  # the same odds, without overflow
    assert generator.seen == pytest.approx(probabilities(shifted, gamma))


def test_label_entropy() -> None:
    found = label_entropy(torch.tensor([[5, 5, 0], [7, 0, 0], [2, 1, 1], [0, 0, 0]]))
    assert found.tolist() == pytest.approx([math.log(2), 0, 1.5 * math.log(2), 0])


def share(cohorts: list[list[int]], event: set[int]) -> float:
    return sum(set(cohort) == event for cohort in cohorts) / len(cohorts)


def test_odds_of_one_client_are_pi_times_its_share_of_samples() -> None:
    entropies, clusters = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0, 0, 1])
    sizes, generator = torch.tensor([1, 3, 10]), np.random.default_rng(0)
    pi = probabilities([0.0, 1.0], 1.0)
    draws = [draw_cohort(entropies, clusters, sizes, 1.0, 1, generator)[0] for _ in range(2000)]
    visits = Counter(draws)
    for client, expected in enumerate([pi[0] / 4, pi[0] * 3 / 4, pi[1]]):
        p = float(expected)
        assert abs(visits[client] - 2000 * p) < 4 * (2000 * p * (1 - p)) ** 0.5


def test_pi_is_renormalised_over_the_clusters_with_clients_left() -> None:
    # Three clusters: {0}, {1}, {2, 3} with pi = a, b, c; two draws.
    entropies, clusters = torch.tensor([2.0, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 2, 2])
    sizes, generator = torch.tensor([1, 1, 1, 3]), np.random.default_rng(1)
    a, b, c = probabilities([2.0, 1.0, 0.0], 1.0)
    cohorts = [draw_cohort(entropies, clusters, sizes, 1.0, 2, generator) for _ in range(2000)]
    expected = {
        (0, 1): a * b / (b + c) + b * a / (a + c),
        (0, 3): a * c / (b + c) * 3 / 4 + c * 3 / 4 * a,
        (2, 3): c * c,
    }
    for event, p in expected.items():
        assert abs(share(cohorts, set(event)) - p) < 4 * (p * (1 - p) / 2000) ** 0.5


def test_all_can_be_drawn_even_where_pi_underflows() -> None:
    entropies, clusters = torch.tensor([0.0, 1.0, 2.0, 2.0]), torch.tensor([0, 1, 2, 2])
    cohort = draw_cohort(entropies, clusters, torch.ones(4), 1e5, 4, np.random.default_rng(0))
    assert set(cohort[:2]) == {2, 3}
    assert cohort[2:] == [1, 0]


@pytest.mark.parametrize(("clients", "draws"), [(500, 20), (30, 30)])
def test_draws_follow_the_order_of_all_keys(clients: int, draws: int) -> None:
    """Each cluster's clients in the order of an exponential variable over n_k, all sorted."""
    about = np.random.default_rng(3)
    clusters, sizes = about.integers(0, 4, clients), about.integers(1, 50, clients)
    clusters[:4] = range(4)
    entropies = torch.from_numpy(about.random(clients))
    generator = np.random.default_rng(8)
    keys = generator.exponential(size=clients) / sizes
    queues = [sorted(np.flatnonzero(clusters == c), key=keys.__getitem__) for c in range(4)]
    means = [entropies[clusters == c].mean().item() for c in range(4)]
    expected = []
    for _ in range(draws):
        left = [c for c in range(4) if queues[c]]
        odds = np.exp([0.7 * means[c] for c in left])
        expected.append(queues[generator.choice(left, p=odds / odds.sum())].pop(0))
    found = draw_cohort(
        *(entropies, torch.from_numpy(clusters), torch.from_numpy(sizes)),
        *(0.7, draws, np.random.default_rng(8)),
    )
    assert found == expected
