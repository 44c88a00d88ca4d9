"""pFedMe against a plain loop, in all engines, and with other sockets."""

import pytest
import torch
from support.federations import federate
from support.second_model import gradients_of_steps, of_model
from support.small_federations import BATCHNORM, SMALL, copy, moved

from fedexp.core.messages import Message, Tensors
from fedexp.errors import InputError
from fedexp.gradients.moreau import Moreau
from fedexp.personalization.own_model import as_own, own_model

LAM, RATE, ETA = 2.0, 0.1, 0.3
OPTIONS = [
    *(*SMALL, "algorithm=pfedme", "local.epochs=2", f"gradient.lam={LAM}", f"optimizer.lr={ETA}"),
    *(f"gradient.rate={RATE}", "gradient.steps=3"),
]


def test_a_step_by_hand() -> None:
    """On f = theta^2 with lam = 1, K = 2 and step size 0.1, from w = 1 and theta = 2."""
    part = Moreau(1.0, 2, 0.1, "previous")
    part.register_buffer("eta", torch.tensor(0.5))
    w, theta = {"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}
    found = part(w | as_own(theta), {}, lambda at, part=0, parts=1: {"a": 2 * at["a"]})
    # 2 - 0.1 (4 + 1) = 1.5; 1.5 - 0.1 (3 + 0.5) = 1.15
    torch.testing.assert_close(found["a"], torch.tensor(1 - 1.15))
    moved_to = 2.0 - 0.5 * own_model({"a": w["a"]} | found)["a"]
    torch.testing.assert_close(moved_to, torch.tensor(1.15))
    part.start = "shared"
    found = part(w | as_own(theta), {}, lambda at, part=0, parts=1: {"a": 2 * at["a"]})
    # 1 - 0.1 * 2 = 0.8; 0.8 - 0.1 (1.6 - 0.2) = 0.66
    torch.testing.assert_close(found["a"], torch.tensor(1 - 0.66))


def test_parameters_that_the_own_model_lacks_keep_their_gradient() -> None:
    """A loss may have parameters."""
    part = Moreau(1.0, 2, 0.1, "previous")
    part.register_buffer("eta", torch.tensor(0.5))
    own = {"a": torch.tensor(5.0), "loss.scale": torch.tensor(7.0)}
    parameters = {"a": torch.tensor(1.0), "loss.scale": torch.tensor(3.0)}
    parameters |= as_own({"a": torch.tensor(2.0)})
    found = part(parameters, own, lambda at, part=0, parts=1: {"a": 2 * at["a"]})
    assert found["loss.scale"].item() == 7
    torch.testing.assert_close(found["a"], torch.tensor(1 - 1.15))  # as above


def theta_of(weights: Tensors, w: Tensors, gradient: object) -> Tensors:
    theta = weights
    for _ in range(3):
        g = gradient(theta)  # type: ignore[operator]
        theta = {n: t - RATE * (g[n] + LAM * (t - w[n])) for n, t in theta.items()}
    return theta


@pytest.mark.parametrize("start", ["previous", "shared"])
@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_equals_a_plain_loop(engine: str, start: str) -> None:
    """Momentum, weight decay and clipping of the configured optimizer have no effect."""
    federation = federate(
        *(*OPTIONS, f"engine={engine}", f"gradient.start={start}", "local.grad_clip=0.01")
    )
    for round in (1, 2):
        message = federation.server.broadcast(round)
        w = theta = copy(of_model(message.weights))
        for gradient in gradients_of_steps(federation, round, 16, epochs=2):
            theta = theta_of(theta if start == "previous" else w, w, gradient)
            w = {name: w[name] - ETA * LAM * (w[name] - theta[name]) for name in w}
        (update,) = federation.engine.train([0], Message(round, message.weights, message.extras))
        for name, value in w.items():
            torch.testing.assert_close(update.weights[name], value, rtol=1e-4, atol=1e-5)
            kept = federation.store.model(0)[name]
            torch.testing.assert_close(kept, theta[name], rtol=1e-4, atol=1e-5)
            assert (kept - value).abs().max() > 1e-3  # theta is another model than w


def test_the_server_mixes_with_beta() -> None:
    """w <- (1 - beta) w + beta times the mean of the clients' weights."""
    federation = federate(*OPTIONS, "aggregator.lr=1.5")
    before, message = copy(federation.server.weights), federation.server.broadcast(1)
    updates = list(federation.engine.train([0, 1], message))
    assert updates[0].num_samples != updates[1].num_samples
    for update in updates:
        federation.server.add(update)
    federation.server.step()
    for name, value in before.items():
        mean = (updates[0].weights[name] + updates[1].weights[name]) / 2
        found = federation.server.weights[name]
        torch.testing.assert_close(found, -0.5 * value + 1.5 * mean, atol=1e-6, rtol=1e-5)


def test_the_own_model_is_not_sent() -> None:
    own, plain = federate(*OPTIONS), federate(*SMALL, "algorithm=fedavg")
    records = [federation.run_round(1).metrics for federation in (own, plain)]
    for key in ("cost/upload_bytes", "cost/download_bytes"):
        assert records[0][key] == records[1][key]
    memory = records[0]["cost/client_memory_bytes"]
    assert memory == sum(w.nbytes for w in plain.server.weights.values())


def test_one_half_needs_the_other() -> None:
    with pytest.raises(InputError, match=r"^gradient=moreau: .* use personalization=pfedme"):
        federate("gradient=moreau")
    with pytest.raises(InputError, match=r"^personalization=pfedme: .* use gradient=moreau"):
        federate("personalization=pfedme")


def test_batchnorm_is_refused() -> None:
    with pytest.raises(InputError, match=r"^backbone\.2: has the running statistics of the shared"):
        federate(*SMALL, "algorithm=pfedme", *BATCHNORM)


@pytest.mark.slow
@pytest.mark.parametrize("others", [["algorithm=fednh"], ["regularizer=proximal", "loss=ntd"]])
def test_it_combines_with_other_sockets(others: list[str]) -> None:
    federation = federate(*SMALL, *others, "personalization=pfedme", "gradient=moreau")
    start = copy(federation.server.weights)
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 10
    assert moved(start, federation.server.weights)
