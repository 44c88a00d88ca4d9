"""FedSR: its divergence by hand, its loss by numpy, and its parameters in the model."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.federations import assert_engine_agrees, federate
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features, logits
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from fedexp.contract import Network
from fedexp.core.client_protocol import Batch
from fedexp.core.forward import Forward
from fedexp.core.messages import Tensors
from fedexp.core.randomness import key, normal
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.fedsr import Norm, SimpleRepresentation, normal_divergence

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=2"]


def made(norm: Norm = "squared") -> tuple[SimpleRepresentation, Linear]:
    """The loss for 3 features and 2 classes with weights 0.3 and 0.2, and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = Linear(3, 2, bias=True)
        loss = SimpleRepresentation(0.3, 0.2, norm)
        loss.create(Network(torch.nn.Identity(), head, 3, 2))
    with torch.no_grad():
        loss.class_mean.copy_(draw(2, 3, seed=2))
        loss.class_deviation.copy_(draw(2, 3, seed=3))
    loss.register_buffer("key", torch.tensor(17), persistent=False)
    return loss, head


def test_the_divergence_by_hand() -> None:
    # KL(N(1, 4) || N(0, 1)) = -log 2 + (4 + 1) / 2 - 1/2, KL(N(3, 1) || N(3, 4)) = log 2 - 3/8.
    found = normal_divergence(
        *(torch.tensor([row]) for row in ([1.0, 3.0], [2.0, 1.0], [0.0, 3.0], [1.0, 2.0]))
    )
    assert found.tolist() == pytest.approx([2 - 3 / 8])


def test_the_divergence_of_torch_s_distributions() -> None:
    mean, other = draw(5, 4), draw(5, 4, seed=1)
    deviation, own = draw(5, 4, seed=2).exp(), draw(5, 4, seed=3).exp()
    p, q = (Independent(Normal(*each), 1) for each in ((mean, deviation), (other, own)))
    found = normal_divergence(mean, deviation, other, own)
    torch.testing.assert_close(found, kl_divergence(p, q))


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_the_loss_by_numpy(norm: Norm) -> None:
    loss, head = made(norm)
    z, y = draw(4, 3, seed=5), [0, 1, 1, 0]
    targets = torch.tensor(y)
    found = loss(Forward(z, head(z), targets, head=head, step=7))

    noise = normal(torch.tensor(17), 7, 4, 3).numpy()
    weight, bias = (each.detach().numpy() for each in loss.deviation.parameters())
    sigma = np.log1p(np.exp(z.numpy() @ weight.T + bias))
    s = z.numpy() + sigma * noise
    logits = s @ head.linear.weight.detach().numpy().T + head.linear.bias.detach().numpy()
    expected = []
    for row, c in enumerate(y):
        m, r = loss.class_mean[c].tolist(), np.log1p(np.exp(loss.class_deviation[c].tolist()))
        own = zip(z[row].tolist(), sigma[row], m, r, strict=True)
        kl = sum(math.log(b / a) + (a**2 + (v - w) ** 2) / (2 * b**2) - 0.5 for v, a, w, b in own)
        length = (s[row] ** 2).sum() if norm == "squared" else math.sqrt((s[row] ** 2).sum())
        cross = math.log(np.exp(logits[row]).sum()) - logits[row, c]
        expected.append(cross + 0.3 * length + 0.2 * kl)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_two_rounds_by_plain_pytorch(norm: Norm) -> None:
    """The steps of all clients, with the divergence of torch's distributions."""
    words = ["algorithm=fedsr", "loss.l2r=0.1", "loss.cmi=0.05", f"loss.norm={norm}"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    weights = loop.start
    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        models = {}
        for client in cohort:
            draws = torch.tensor(key(0, "random_features", round, client))

            def loss(w: Tensors, batch: Batch, step: int, draws: Tensor = draws) -> Tensor:
                z, y = features(w, batch[0]), batch[1]
                raw = F.linear(z, w["loss.deviation.weight"], w["loss.deviation.bias"])
                own = Normal(z, F.softplus(raw))
                of_class = Normal(w["loss.class_mean"][y], F.softplus(w["loss.class_deviation"][y]))
                s = z + own.stddev * normal(draws, step, *z.shape)
                length = s.norm(dim=1).pow(2 if norm == "squared" else 1).mean()
                information = kl_divergence(own, of_class).sum(dim=1).mean()
                return F.cross_entropy(logits(w, s), y) + 0.1 * length + 0.05 * information

            models[client] = descend(weights, loop.batches(round, client), loss)
        weights = loop.mean(models, cohort, weights)
        assert_same(federation.server.weights, weights)


def test_padding_does_not_count() -> None:
    loss, head = made()
    z, y = draw(4, 3), torch.tensor([0, 1, 1, 0])
    real = torch.tensor([1.0, 1.0, 0.0, 0.0])
    padded = loss(Forward(z, head(z), y, real, head=head))
    torch.testing.assert_close(padded, loss(Forward(z[:2], head(z[:2]), y[:2], head=head)))


def test_a_tiny_deviation_is_finite() -> None:
    loss, head = made()
    with torch.no_grad():
        loss.deviation.bias.fill_(-300)
        loss.class_deviation.fill_(-300)
        loss.class_mean.zero_()
    z = torch.zeros(2, 3, requires_grad=True)
    value = loss(Forward(z, head(z), torch.tensor([0, 1]), head=head))
    gradients = torch.autograd.grad(value, [z, *loss.parameters()])
    assert value.isfinite()
    assert all(each.isfinite().all() for each in gradients)


def test_its_parameters_are_trained_sent_and_averaged() -> None:
    federation = federate(*SMALL, "algorithm=fedsr")
    names = {"loss.deviation.weight", "loss.deviation.bias"}
    names |= {"loss.class_mean", "loss.class_deviation"}
    before = {name: federation.server.weights[name].clone() for name in names}
    metrics = federation.run_round(1).metrics
    assert all(not torch.equal(before[n], federation.server.weights[n]) for n in names)
    numbers = 64 * 64 + 64 + 2 * 10 * 64
    plain = federate(*SMALL).run_round(1).metrics
    added = metrics["cost/upload_bytes"] - plain["cost/upload_bytes"]
    assert added == 4 * 4 * numbers  # four clients, four bytes a number


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=fedsr", "loss.cmi=0.01"], rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        ["algorithm=fednh"],
        ["algorithm=fedrep", "regularizer=proximal"],
        ["algorithm=scaffold", "optimizer.momentum=0"],
        ["algorithm=ifca"],
        ["algorithm=ditto", "loss=decorrelated", "loss@loss.base=fedsr"],
    ],
)
def test_it_combines_with_other_sockets(others: list[str]) -> None:
    own = [] if "loss=decorrelated" in others else ["loss=fedsr"]
    federation = federate(*SMALL, *others, *own)
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100


@pytest.mark.parametrize(
    "personalization",
    [
        ["personalization=fedrep"],
        ["personalization=fedbabu"],
        ["personalization=fedah"],
        ["personalization=fedrod", "personalization.second_phase=local"],
        ["personalization=fedetf", "head=projected_etf", "head.tuned=true"],
    ],
)
def test_its_parameters_are_trained_where_training_has_phases(personalization: list[str]) -> None:
    federation = federate(*SMALL, "loss=fedsr", *personalization)
    before = federation.server.weights
    federation.run_round(1)
    own = [name for name in before if name.startswith("loss.")]
    assert len(own) == 4
    assert not any(federation.server.weights[name].equal(before[name]) for name in own)


def test_a_head_with_running_statistics_is_refused() -> None:
    with pytest.raises(InputError, match="loss=fedsr: random features would change"):
        federate("head=etf", "head.feature_norm=batchnorm", "loss=fedsr")
