"""Steps that compute their outputs with other weights than the model's."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.small_federations import BATCHNORM, SMALL, copy
from support.step_weight_parts import BIAS, WEIGHT
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.testing import check_part

OWN = "support.step_weight_parts"
SHRINKING = f"personalization._target_={OWN}.Shrinking"
SCALED = ["head._target_=" + OWN + ".Scaled", "~head.bias"]
PLAIN = [*SMALL, "optimizer.lr=0.1", "optimizer.weight_decay=0", "local.batch_size=16"]


def features(w: Tensors, inputs: Tensor) -> Tensor:
    z = inputs.flatten(1)
    for layer in ("backbone.1.0", "backbone.1.2"):
        z = F.linear(z, w[f"{layer}.weight"], w[f"{layer}.bias"]).relu()
    return z


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_equals_a_plain_loop(engine: str) -> None:
    """With momentum, which shows that the gradients reach the trained parameters."""
    federation = federate(*PLAIN, SHRINKING, f"engine={engine}", "optimizer.momentum=0.9")
    message = federation.server.broadcast(1)
    w = {name: value.requires_grad_() for name, value in copy(message.weights).items()}
    optimizer = torch.optim.SGD(list(w.values()), lr=0.1, momentum=0.9)
    for step, (inputs, targets) in enumerate(federation.data.clients[0].local_batches(1, 16)):
        weight = w[WEIGHT] / (step + 1)
        logits = features(w, inputs) @ weight.T + 0.5 * w[BIAS] + w[WEIGHT].mean(dim=1)
        optimizer.zero_grad()
        F.cross_entropy(logits, targets).backward()
        optimizer.step()
    assert step > 1
    (update,) = (each for each in federation.engine.train([0, 1], message) if each.client == 0)
    for name, value in w.items():
        torch.testing.assert_close(update.weights[name], value.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_buffer_of_the_head_can_follow_the_step(engine: str) -> None:
    federation = federate(*PLAIN, *SCALED, f"engine={engine}", "optimizer.momentum=0")
    message = federation.server.broadcast(1)
    w = {name: value.requires_grad_() for name, value in copy(message.weights).items()}
    assert "head.scale" not in w
    for step, (inputs, targets) in enumerate(federation.data.clients[1].local_batches(1, 16)):
        loss = F.cross_entropy((step + 3) * features(w, inputs) @ w["head.weight"].T, targets)
        slopes = torch.autograd.grad(loss, list(w.values()))
        steps = dict(zip(w, slopes, strict=True))
        w = {n: (v - 0.1 * steps[n]).detach().requires_grad_() for n, v in w.items()}
    (update,) = (each for each in federation.engine.train([0, 1], message) if each.client == 1)
    for name, value in w.items():
        torch.testing.assert_close(update.weights[name], value.detach(), rtol=1e-4, atol=1e-5)
    assert federation.store.model(1)["head.scale"] == 2  # the step's weights are gone


def test_a_gradient_rule_moves_the_trained_parameters() -> None:
    words = [*PLAIN, SHRINKING, "gradient=sam", "loss=moon"]
    models = []
    for engine in ("serial", "vectorized"):
        federation = federate(*words, f"engine={engine}")
        message = federation.server.broadcast(1)
        models.append({u.client: u.weights for u in federation.engine.train([0, 1], message)})
    for name, value in models[0][0].items():
        torch.testing.assert_close(value, models[1][0][name], rtol=1e-4, atol=1e-5)
        assert not value.equal(message.weights[name])


def test_running_statistics_are_kept_in_the_model() -> None:
    federation = federate(*PLAIN, SHRINKING, *BATCHNORM)
    federation.run_round(1)
    assert federation.server.weights["backbone.2.num_batches_tracked"] > 1
    assert federation.server.weights["backbone.2.running_mean"].any()


def test_a_wrong_name_is_one_line() -> None:
    federation = federate(*SMALL, f"personalization._target_={OWN}.Wrong")
    with pytest.raises(InputError, match=r"^personalization .*step_weights\(...\) returned head.g"):
        federation.run_round(1)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part(SHRINKING)
    check_part(*SCALED)
