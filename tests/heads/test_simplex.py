"""Floco's simplex against hand values, against plain PyTorch, and in federations."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import federate, take_step
from support.plain_mlp import features
from support.small_federations import ONE_STEP, copy, train
from torch import Tensor

from fedexp.core.randomness import key, uniform
from fedexp.heads.simplex import subregions
from fedexp.testing import check_part

ETA = 0.1
SMALL = ["clients.count=4", "clients.per_round=3", "data.subset=200", "local.epochs=1", "rounds=4"]
FLOCO = [*SMALL, "algorithm=floco", "head.endpoints=3", "head.radius=0.2"]


def test_subregions_of_three_clients_on_a_line_by_hand() -> None:
    """Any scale up to 0.1 puts the outer clients on two corners, as far apart as possible."""
    changes = torch.tensor([[-0.1], [0.0], [0.1]]) * torch.tensor([0.6, 0.0, 0.8])
    found = subregions(changes, 2)
    expected = torch.tensor([[1.0, 0], [0.5, 0.5], [0, 1]]).double()
    torch.testing.assert_close(found if found[0, 0] > 0.5 else found.flip(1), expected)
    with_third = subregions(changes, 3)  # without a third component, its coordinate is 0
    assert with_third.sum(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_equal_changes_and_single_clients_get_the_middle() -> None:
    middle = torch.full((1, 4), 0.25).double()
    torch.testing.assert_close(subregions(torch.ones(1, 5), 4), middle)
    torch.testing.assert_close(subregions(torch.ones(3, 5), 4), middle.expand(3, 4))


@pytest.mark.slow
def test_subregions_by_an_independent_search() -> None:
    """Principal components by an eigendecomposition, the projection by bisection."""
    changes = torch.randn(5, 7, generator=torch.Generator().manual_seed(3)).double().numpy() / 9
    centered = changes - changes.mean(axis=0)
    values, vectors = np.linalg.eigh(centered.T @ centered)
    kappa = (centered @ vectors)[:, np.argsort(-values)[:3]]
    found = subregions(torch.from_numpy(changes), 3).numpy()
    best: Any = None
    signs = [np.array([a, b, c]) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
    candidates = []
    for sign in signs:  # the sign of a component is arbitrary
        best = (np.inf, None)
        for z in np.linspace(1e-4, 1, 1000):
            scaled = kappa * sign / z
            low, high = scaled.min(axis=1) - 1, scaled.max(axis=1)
            for _ in range(60):
                t = (low + high) / 2
                above = np.maximum(scaled - t[:, None], 0).sum(axis=1) > 1
                low, high = np.where(above, t, low), np.where(above, high, t)
            points = np.maximum(scaled - low[:, None], 0)
            gaps = [((points[i] - points[j]) ** 2).sum() for i in range(5) for j in range(i)]
            energy = sum(1 / max(gap, 1e-8) for gap in gaps)
            best = min(best, (energy, points), key=lambda pair: pair[0])
        candidates.append(best[1])
    assert min(np.abs(found - each).max() for each in candidates) < 1e-6


def alpha(federation: Any, round: int, client: int, center: Tensor | None, step: int = 0) -> Tensor:
    """The point of a step, by default of the client's first one."""
    draws = uniform(torch.tensor(key(federation.data.seed, "simplex", round, client)), step, 7)
    if center is None:
        return torch.distributions.Exponential(1.0).icdf(draws[:3]) / -(1 - draws[:3]).log().sum()
    u = 2 * draws[3:6] - 1
    return center + 0.2 * draws[6] * u / u.abs().sum()


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_rounds_before_and_after_the_subregions_by_plain_pytorch(engine: str) -> None:
    federation = federate(*FLOCO, *ONE_STEP, f"optimizer.lr={ETA}", f"engine={engine}")
    head: Any = federation.engine.resources.parts["head"]
    for round, cohort in ((1, (0, 1)), (2, (1, 2)), (3, (0, 1, 3))):
        message = federation.server.broadcast(round)
        start = copy(message.weights)
        assert set(head.centers) == ({0, 1, 2} if round == 3 else set())
        for client in cohort:
            w = {name: value.clone().requires_grad_() for name, value in start.items()}
            ((inputs, targets),) = federation.data.clients[client].batches(1000)
            z = features(w, inputs)
            point = alpha(federation, round, client, head.centers.get(client))
            matrix = sum(a * each for a, each in zip(point, w["head.weight"], strict=True))
            loss = F.cross_entropy(z @ matrix.T + w["head.bias"], targets)
            slopes = torch.autograd.grad(loss, list(w.values()))
            (update,) = federation.engine.train([client], message)
            for (name, value), slope in zip(w.items(), slopes, strict=True):
                expected = (value - ETA * slope).detach()
                torch.testing.assert_close(update.weights[name], expected, rtol=1e-4, atol=1e-5)
            if round == 3:
                kept = federation.store.model(client)["head.point"]
                torch.testing.assert_close(kept, head.centers.get(client, torch.full((3,), 1 / 3)))
        train(federation, round, cohort)
    assert set(head.centers) == {0, 1, 2}
    assert head.changes == {}


def centers_by_numpy(changes: Any) -> Any:
    """The regions' centers: components by the Gram matrix, the projection by bisection."""
    centered = changes - changes.mean(axis=0)
    values, vectors = np.linalg.eigh(centered @ centered.T)
    first = np.argsort(-values)[:3]
    components = centered.T @ vectors[:, first]
    largest = components[np.abs(components).argmax(axis=0), range(3)]
    kappa = vectors[:, first] * np.sqrt(values[first]) * np.sign(largest)
    scaled = kappa / np.linspace(1e-4, 1, 1000)[:, None, None]
    low, high = scaled.min(axis=2, keepdims=True) - 1, scaled.max(axis=2, keepdims=True)
    for _ in range(60):
        t = (low + high) / 2
        above = np.maximum(scaled - t, 0).sum(axis=2, keepdims=True) > 1
        low, high = np.where(above, t, low), np.where(above, high, t)
    points = np.maximum(scaled - low, 0)
    gaps = ((points[:, :, None] - points[:, None]) ** 2).sum(axis=3)
    i, j = np.triu_indices(len(changes), 1)
    return points[(1 / np.maximum(gaps[:, i, j], 1e-8)).sum(axis=1).argmin()]


def test_a_round_by_plain_pytorch() -> None:
    """The centers follow from all clients' changes; then a client's steps, each at a new point."""
    federation = federate(*FLOCO, "local.epochs=2", "clients.per_round=4")
    changes = []
    for round in (1, 2):
        message = federation.server.broadcast(round)
        start = copy(message.weights)["head.weight"]
        updates = sorted(federation.engine.train(range(4), message), key=lambda each: each.client)
        changes = [(each.weights["head.weight"] - start).flatten() for each in updates]
        take_step(federation.server, updates)
    centers = centers_by_numpy(torch.stack(changes).double().numpy())
    message = federation.server.broadcast(3)
    sent = [message.to_client(client).extras["head"]["center"] for client in range(4)]
    torch.testing.assert_close(torch.stack(sent), torch.from_numpy(centers).float())

    w = {name: value.clone().requires_grad_() for name, value in message.weights.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.02, momentum=0.9, weight_decay=1e-5)
    batches = federation.data.clients[1].local_batches(3, 16)
    for step, (inputs, targets) in enumerate(batch for _ in range(2) for batch in batches):
        z = features(w, inputs)
        point = alpha(federation, 3, 1, sent[1], step)
        matrix = sum(a * each for a, each in zip(point, w["head.weight"], strict=True))
        loss = F.cross_entropy(z @ matrix.T + w["head.bias"], targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (update,) = federation.engine.train([1], message)
    for name, value in w.items():
        torch.testing.assert_close(update.weights[name], value.detach(), rtol=1e-4, atol=1e-5)


def test_changes_from_a_checkpoint_are_on_the_cpu() -> None:
    """There the next changes are put beside them, wherever the head is."""
    federation = federate(*FLOCO)
    train(federation, 1, (0, 1))
    head: Any = federation.engine.resources.parts["head"]
    state = head.server_state()
    head.to("meta").load_server_state(state)
    assert {each.device.type for each in head.changes.values()} == {"cpu"}


def test_a_longer_run_that_goes_on_keeps_its_subregions() -> None:
    short, longer = federate(*FLOCO, "rounds=2"), federate(*FLOCO, "rounds=20")
    train(short, 1, (0, 1))
    heads = [each.server.parts["head"] for each in (short, longer)]
    heads[1].load_server_state(heads[0].server_state())
    weights = short.server.weights
    assert [head.extract(weights, weights) for head in heads] == [{}, {}]


def test_the_points_lie_in_their_regions() -> None:
    federation = federate(*FLOCO)
    train(federation, 1, (0, 1))
    head: Any = federation.engine.resources.parts["head"]
    for assigned in (False, True):
        head.point.copy_(torch.tensor([0.5, 0.25, 0.25]))
        head.is_assigned.fill_(assigned)
        points = torch.stack([head.step_weights({}, step)["head.point"] for step in range(50)])
        if assigned:
            assert ((points - head.point).abs().sum(dim=1) <= 0.2 + 1e-6).all()
        else:
            assert (points >= 0).all()
            torch.testing.assert_close(points.sum(dim=1), torch.ones(50))
        assert points.std(dim=0).min() > 0.01


def test_the_global_model_is_the_middle_and_a_personal_model_its_center() -> None:
    federation = federate(*FLOCO, "measure.personal.every=1")
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
    assert 0 < metrics["train/loss"] < 100
    assert "head.point" not in federation.server.weights
    module: Any = federation.global_model(3)
    assert module.head.point.tolist() == pytest.approx([1 / 3] * 3)
    head: Any = federation.engine.resources.parts["head"]
    centers = head.centers
    assert len(centers) > 2
    for client in federation.sampler.select(3):
        expected = centers.get(client, torch.full((3,), 1 / 3))
        torch.testing.assert_close(federation.store.model(client)["head.point"], expected)


def test_the_centers_are_counted() -> None:
    federation = federate(*FLOCO, "clients.per_round=4")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 3 * 64 * 10 + 10)
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == 4 * (size + (4 * 3 if round == 3 else 0))
        assert metrics["cost/upload_bytes"] == 4 * size


@pytest.mark.slow
@pytest.mark.parametrize("others", [["personalization=ditto"], ["loss=moon", "gradient=sam"]])
def test_it_combines_with_other_sockets(others: list[str]) -> None:
    federation = federate(*FLOCO, *others, "measure.personal.every=1")
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
    assert 0 < metrics["train/loss"] < 100
    assert 0 <= metrics["personal/accuracy_local"] <= 1


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("head=simplex", "loss=moon", "personalization=ditto")
