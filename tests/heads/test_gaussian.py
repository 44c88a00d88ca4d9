"""pFedFDA: a round in plain PyTorch, what is sent, and whose classifier predicts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.model_selection import StratifiedKFold
from support.federations import assert_engine_agrees, begin_client, federate
from support.plain_mlp import features
from support.small_federations import ONE_STEP, SMALL, copy, personal, train
from torch import Tensor

from fedexp.core.randomness import key
from fedexp.errors import InputError
from fedexp.heads.discriminant import best_betas, discriminant, stratified
from fedexp.testing import check_part

PFEDFDA = [*SMALL, "algorithm=pfedfda"]
ETA, RIDGE = 0.05, 0.1
STEP = [*ONE_STEP, f"optimizer.lr={ETA}", f"head.ridge={RIDGE}"]


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_round_in_plain_pytorch(engine: str) -> None:
    federation = federate(*PFEDFDA, *STEP, f"engine={engine}")
    message = federation.server.broadcast(1)
    start = copy(message.weights)
    means, covariance = start["head.means"].double(), start["head.covariance"].double()
    assert torch.equal(covariance, torch.eye(64).double())
    assert means.min() >= 0
    assert means.max() < 1
    expected: dict[str, torch.Tensor] = {}
    total = sum(federation.data.clients[client].num_samples for client in (0, 1))
    for client in (0, 1):
        ((x, y),) = federation.data.clients[client].batches(1000)
        layers = [f"backbone.1.{n}" for n in (0, 2)]
        w = {f"{n}.{k}": start[f"{n}.{k}"].clone() for n in layers for k in ("weight", "bias")}
        priors = y.bincount(minlength=10) / len(y) + 1e-4
        priors = (priors / priors.sum()).double()
        inverse = covariance.inverse()  # the identity, which the shrinkage does not change
        bias = priors.log() - 0.5 * torch.einsum("cd,de,ce->c", means, inverse, means)
        for value in w.values():
            value.requires_grad_()
        logits = F.linear(features(w, x), (means @ inverse).float(), bias.float())
        slopes = torch.autograd.grad(F.cross_entropy(logits, y), list(w.values()))
        w = {n: (v - ETA * g).detach() for (n, v), g in zip(w.items(), slopes, strict=True)}
        z = features(w, x).double()
        splits = stratified((z, y), 2, key(0, "feature_folds", 1, client))
        betas = best_betas(splits, means, covariance, priors, RIDGE, True)
        assert min(betas) > 0
        own = torch.stack(
            [z[y == c].mean(dim=0) if (y == c).any() else means[c] for c in range(10)]
        )
        away = z - own[y]
        spread = away.T @ away / (len(y) - 1) + RIDGE * torch.eye(64).double()
        w["head.means"] = betas[0] * own + (1 - betas[0]) * means
        w["head.covariance"] = betas[1] * spread + (1 - betas[1]) * covariance
        for name, value in w.items():
            expected[name] = expected.get(name, 0) + value * len(y) / total
    train(federation, 1)
    found = federation.server.weights
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-4, atol=1e-4)


def classifier(means: Tensor, covariance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of Gaussians with one covariance, for a client with the labels ``y``."""
    shares = y.bincount(minlength=10).double() / len(y) + 1e-4
    d = len(covariance)
    shrunk = (1 - 1e-4) * covariance + 1e-4 * covariance.trace() / d * torch.eye(d).double()
    weight = means @ shrunk.inverse()
    return weight, (shares / shares.sum()).log() - (means * weight).sum(dim=1) / 2


def mixed(betas: Tensor, own: list[Tensor], received: list[Tensor]) -> list[Tensor]:
    """The client's share of its own means and covariance, and the rest of the received ones."""
    return [b * a + (1 - b) * g for b, a, g in zip(betas, own, received, strict=True)]


def own_gaussian(z: Tensor, y: Tensor, received: Tensor) -> list[Tensor]:
    means = torch.stack(
        [z[y == c].mean(dim=0) if (y == c).any() else received[c] for c in range(10)]
    )
    away = torch.stack([row - means[c] for row, c in zip(z, y, strict=True)])
    return [means, away.T @ away / (len(z) - 1) + RIDGE * torch.eye(z.shape[1]).double()]


def interpolation(z: Tensor, y: Tensor, received: list[Tensor], draw: int) -> Tensor:
    """The two betas with the least sum of the held-out losses of two folds."""
    kept = torch.tensor([int((y == c).sum()) >= 2 for c in y])
    x, labels = z[kept], y[kept]
    rule = StratifiedKFold(2, shuffle=True, random_state=draw % 2**32)
    folds = [(own_gaussian(x[a], labels[a], received[0]), b) for a, b in rule.split(x, labels)]

    def losses(values: np.ndarray) -> tuple[float, np.ndarray]:
        betas = torch.tensor(values, requires_grad=True)
        total = torch.zeros(()).double()
        for own, out in folds:
            weight, bias = classifier(*mixed(betas, own, received), y)
            total = total + F.cross_entropy(x[out] @ weight.T + bias, labels[out])
        return total.item(), torch.autograd.grad(total, betas)[0].numpy()

    words = {"method": "L-BFGS-B", "options": {"maxiter": 10, "gtol": 1e-3}}
    return torch.from_numpy(minimize(losses, [0.5, 0.5], jac=True, bounds=[(0, 1)] * 2, **words).x)


def test_rounds_of_several_steps_by_plain_pytorch() -> None:
    """Turns with the default optimizer, the betas that the clients choose, and the averages."""
    words = ["model.hidden=[16]", "model.feature_dim=16", f"head.ridge={RIDGE}"]
    federation = federate(*PFEDFDA, *words)
    server = copy(federation.server.weights)
    sizes = [federation.data.clients[client].num_samples for client in (0, 1)]
    body = [name for name in server if name.startswith("backbone.")]
    inside = False
    for round in (1, 2):
        received = [server[f"head.{name}"].double() for name in ("means", "covariance")]
        sent = []
        for client in (0, 1):
            data = federation.data.clients[client]
            ((x, y),) = data.batches(1000)
            weight, bias = (each.float() for each in classifier(*received, y))
            w = {name: server[name].clone().requires_grad_() for name in body}
            optimizer = torch.optim.SGD(w.values(), 0.02, 0.9, weight_decay=1e-5)
            for inputs, targets in data.local_batches(round, 16):
                optimizer.zero_grad()
                F.cross_entropy(features(w, inputs) @ weight.T + bias, targets).backward()
                optimizer.step()
            z = features(w, x).detach().double()
            betas = interpolation(z, y, received, key(0, "feature_folds", round, client))
            inside |= bool(((betas > 0) & (betas < 1)).all())
            own = mixed(betas, own_gaussian(z, y, received[0]), received)
            both = dict(zip(("head.means", "head.covariance"), own, strict=True))
            sent.append({name: value.detach() for name, value in (w | both).items()})
        server = {
            name: sum(n * each[name] for n, each in zip(sizes, sent, strict=True)) / sum(sizes)
            for name in sent[0]
        }
        train(federation, round)
        found = federation.server.weights
        assert found.keys() == server.keys()
        for name, value in server.items():
            near = 1e-4 if name.startswith("head.") else 1e-5  # ten steps towards the best betas
            torch.testing.assert_close(found[name], value.float(), rtol=1e-4, atol=near)
    assert inside  # betas that are neither 0 nor 1 are among them


def test_personal_models_by_plain_pytorch() -> None:
    """The backbone after the round with the classifier of the mixed Gaussians of its features.

    The folds that choose the betas are those of the next round.
    """
    federation = federate(*PFEDFDA, f"head.ridge={RIDGE}", "model.feature_dim=16")
    train(federation, 1)
    w = copy(federation.server.weights)
    received = [w["head.means"].double(), w["head.covariance"].double()]
    inside = False
    parts = zip(*federation.data.test.batches(1000), strict=True)
    inputs, labels = (torch.cat(part) for part in parts)
    for client, found in personal(federation, 1).items():
        ((x, y),) = federation.data.clients[client].batches(1000)
        z = features(w, x).double()
        betas = interpolation(z, y, received, key(0, "feature_folds", 2, client))
        inside |= bool(((betas > 0) & (betas < 1)).any())
        weight, bias = classifier(*mixed(betas, own_gaussian(z, y, received[0]), received), y)
        logits = features(w, inputs).double() @ weight.T + bias
        assert torch.equal(found.correct, logits.argmax(dim=1) == labels)
        loss = F.cross_entropy(logits, labels).item()
        assert found.loss == pytest.approx(loss, rel=1e-4)
    assert inside


def test_a_class_that_a_client_lacks_keeps_its_mean() -> None:
    words = ["partition=shards", "partition.classes_per_client=4", "head.ridge=0.1"]
    federation = federate(*PFEDFDA, *words)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    missing = federation.data.clients[0].class_counts == 0
    before, after = message.weights["head.means"], update.weights["head.means"]
    torch.testing.assert_close(after[missing], before[missing])
    assert not torch.isclose(after[~missing], before[~missing]).all(dim=1).any()
    assert all(value.isfinite().all() for value in update.weights.values())


def test_a_personal_model_has_the_classifier_of_its_client() -> None:
    federation = federate(*PFEDFDA, "partition.beta=0.1")
    train(federation, 1)
    message = federation.server.broadcast(1)
    module = begin_client(federation.engine, 0, federation.server.broadcast(2))
    shared = module.head.get_buffer("weight").clone()
    assert personal(federation, 1)[0].correct.float().mean() > 0
    assert not torch.equal(module.head.get_buffer("weight"), shared)
    module = federation.engine.resources.load_global(message)
    weight, bias = discriminant(
        message.weights["head.means"].double(),
        message.weights["head.covariance"].double(),
        torch.full((10,), 0.1).double(),
    )
    torch.testing.assert_close(module.head.get_buffer("weight"), weight.float())
    torch.testing.assert_close(module.head.get_buffer("bias"), bias.float())


def test_a_separate_personal_model_has_the_received_means_and_covariance() -> None:
    federation = federate(*PFEDFDA, "personalization=ditto")
    train(federation, 1)
    message = federation.server.broadcast(2)
    list(federation.engine.train([0], message))
    personal_model = federation.store.model(0)
    for name in ("head.means", "head.covariance"):
        assert torch.equal(personal_model[name], message.weights[name])


@pytest.mark.slow
def test_engines_agree() -> None:
    assert_engine_agrees("vectorized", PFEDFDA, rounds=2)


def test_diverged_features_are_left_out() -> None:
    federation = federate(*PFEDFDA, "optimizer.lr=1e30", "local.epochs=3")
    assert federation.run_round(1).metrics["clients/quarantined"] == 2
    assert all(value.isfinite().all() for value in federation.server.weights.values())


def test_it_trains_nothing_that_could_be_private() -> None:
    with pytest.raises(InputError, match="head=gaussian: trains nothing"):
        federate(*SMALL, "head=gaussian", "personalization=fedper")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=pfedfda", "head.separate=false", "head.folds=3")
