"""pFedFDA: a round in plain PyTorch, what is sent, and whose classifier predicts."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, begin_client, federate
from support.small_federations import ONE_STEP, SMALL, copy, personal, train

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

        def features(w: dict[str, torch.Tensor], x: torch.Tensor = x) -> torch.Tensor:
            z = x.flatten(1)
            for n in ("backbone.1.0", "backbone.1.2"):
                z = F.linear(z, w[f"{n}.weight"], w[f"{n}.bias"]).relu()
            return z

        priors = y.bincount(minlength=10) / len(y) + 1e-4
        priors = (priors / priors.sum()).double()
        inverse = covariance.inverse()  # the identity, which the shrinkage does not change
        bias = priors.log() - 0.5 * torch.einsum("cd,de,ce->c", means, inverse, means)
        for value in w.values():
            value.requires_grad_()
        logits = F.linear(features(w), (means @ inverse).float(), bias.float())
        slopes = torch.autograd.grad(F.cross_entropy(logits, y), list(w.values()))
        w = {n: (v - ETA * g).detach() for (n, v), g in zip(w.items(), slopes, strict=True)}
        z = features(w).double()
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
    check_part("algorithm=pfedfda")
    check_part("algorithm=pfedfda", "head.separate=false", "head.folds=3")
