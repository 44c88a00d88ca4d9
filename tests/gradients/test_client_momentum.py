"""FedCM and MoFedSAM in training, against a plain loop of their equations."""

import pytest
import torch
from support.federations import federate, weights_after
from support.plain_loop import LR, SETTING, PlainLoop, assert_same

from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from fedexp.core.part import Clients, Model, ServerTools, Setting
from fedexp.errors import InputError
from fedexp.gradients.client_momentum import ClientMomentum

ALPHA, RHO = 0.3, 0.05


def along(weights: Tensors, direction: Tensors, scale: float) -> Tensors:
    return {name: value + scale * direction[name] for name, value in weights.items()}


def perturbed(loop: PlainLoop, y: Tensors, batch: Batch) -> Tensors:
    g = loop.gradient(y, batch)
    length = torch.cat([each.flatten() for each in g.values()]).norm()
    return loop.gradient(along(y, g, RHO / float(length)), batch)


def plain_loop(loop: PlainLoop, rounds: int, sharp: bool, momentum: float = 0.0) -> Tensors:
    """Delta is the mean of all v, weighted by their share in the models."""
    x = loop.start
    delta = {name: torch.zeros_like(value) for name, value in x.items()}
    for round, cohort in loop.cohorts(rounds):
        trained, weights, directions = [], [], []
        for k in cohort:
            y, steps = dict(x), loop.batches(round, k)
            velocity = {name: torch.zeros_like(value) for name, value in x.items()}
            for step, batch in enumerate(steps):
                g = perturbed(loop, y, batch) if sharp else loop.gradient(y, batch)
                v = {n: ALPHA * g[n] + (1 - ALPHA) * delta[n] for n in g}
                directions.append(v)
                weights.append(sum(momentum**age for age in range(len(steps) - step)))
                velocity = along(v, velocity, momentum)
                y = along(y, velocity, -LR)
            trained.append(y)
        delta = {
            n: sum(w * v[n] for w, v in zip(weights, directions, strict=True)) / sum(weights)
            for n in x
        }
        x = {n: torch.stack([y[n] for y in trained]).mean(dim=0) for n in x}
    return x


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize("algorithm", ["fedcm", "mofedsam"])
def test_training_equals_a_plain_loop(algorithm: str, engine: str) -> None:
    options = [f"algorithm={algorithm}", f"engine={engine}", f"gradient.alpha={ALPHA}"]
    loop = PlainLoop(*options)
    expected = plain_loop(loop, 3, sharp=algorithm == "mofedsam")
    assert_same(weights_after(federate(*SETTING, *options), 3), expected, 2e-5)


def test_local_momentum_against_a_plain_loop() -> None:
    options = ["algorithm=fedcm", f"gradient.alpha={ALPHA}", "optimizer.momentum=0.6"]
    found = weights_after(federate(*SETTING, *options), 3)
    assert_same(found, plain_loop(PlainLoop(*options), 3, False, 0.6), 2e-5)


def test_alpha_one_is_fedavg_and_fedsam() -> None:
    for algorithm, same in (("fedcm", "plain"), ("mofedsam", "sam")):
        found = federate(*SETTING, f"algorithm={algorithm}", "gradient.alpha=1")
        expected = federate(*SETTING, "aggregator=uniform", f"gradient={same}")
        assert_same(weights_after(found, 2), weights_after(expected, 2), 1e-6)


def test_the_momentum_is_the_mean_gradient_of_a_first_round() -> None:
    """One step each: Delta is alpha times the mean gradient at the initial weights."""
    words = ["algorithm=fedcm", "local.batch_size=1000", "local.epochs=1"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    ((_, cohort),) = loop.cohorts(1)
    gradients = [loop.gradient(loop.start, loop.batches(1, k)[0]) for k in cohort]
    federation.run_round(1)
    for name, value in federation.server.broadcast(2).extras["gradient"].items():
        mean = torch.stack([g[name] for g in gradients]).mean(dim=0)
        torch.testing.assert_close(value, 0.1 * mean, rtol=1e-4, atol=1e-6)


def test_weight_decay_acts_with_decay_over_alpha() -> None:
    """The loss (w - 1)^2 / 2 with decay 0.05 and alpha 0.1 converges to 1 / (1 + 0.05 / 0.1)."""
    part, w, lr, decay = ClientMomentum(alpha=0.1), torch.zeros(()), 0.5, 0.05
    clients, model = Clients.of(torch.ones(1, 1)), Model({"w": w.shape}, frozenset({"w"}))
    part.setup(Setting(0, 9, 1, 1, 1, 1, clients, model, ServerTools()))
    for round in range(1, 400):
        part.momentum.fill(part.broadcast(round))
        v = part({"w": w}, {"w": w - 1}, lambda *_: {})["w"]
        trained = w - lr * (v + decay * w)
        part.correct({"w": w}, {"w": trained}, {"distance": torch.tensor(lr)}, 1)
        w = trained
    assert w.item() == pytest.approx(1 / 1.5, abs=1e-4)


def test_what_crosses_the_network() -> None:
    """A number up, and from the second round twice the model down."""
    federation = federate(*SETTING, "algorithm=fedcm")
    model = sum(value.nbytes for value in federation.server.weights.values())
    records = [federation.run_round(round) for round in (1, 2)]
    assert [each.metrics["cost/upload_bytes"] for each in records] == [3 * (model + 8)] * 2
    assert [each.metrics["cost/download_bytes"] for each in records] == [3 * model, 6 * model]


def test_private_parameters_use_their_gradient() -> None:
    """A private head trains in the first round as without momentum; the backbone does not."""
    words = [*SETTING, "personalization=fedper", "aggregator=uniform", "local.batch_size=1000"]
    words += ["local.epochs=1"]
    heads, bodies = [], []
    for option in ("plain", "client_momentum"):
        federation = federate(*words, f"gradient={option}")
        client = federation.sampler.select(1)[0]
        (update,) = federation.engine.train([client], federation.server.broadcast(1))
        heads.append(federation.store.model(client)["head.linear.weight"])
        bodies.append(next(iter(update.weights.values())))
    torch.testing.assert_close(*heads)
    assert not torch.allclose(*bodies)


def test_kept_momentum_is_refused() -> None:
    with pytest.raises(InputError, match="client momentum divides the global step"):
        federate("algorithm=fedcm", "optimizer.momentum=0.9", "local.keep_optimizer=true")


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["client_momentum", "sam_momentum"])
def test_it_combines_with_other_sockets(gradient: str) -> None:
    options = ["algorithm=fednh", "regularizer=proximal", f"gradient={gradient}"]
    federation = federate(*SETTING, *options)
    for round in (1, 2):
        assert federation.run_round(round).metrics["train/loss"] > 0
