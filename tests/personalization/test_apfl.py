"""APFL against a plain loop, in all engines, and with other sockets."""

import pytest
import torch
from support.federations import equal, federate
from support.second_model import gradients_of_steps, of_model
from support.small_federations import SMALL, copy

from fedexp.errors import InputError

ETA = 0.1
PLAIN = ["optimizer.momentum=0", "optimizer.weight_decay=0", f"optimizer.lr={ETA}"]
OPTIONS = [*SMALL, "algorithm=apfl", "local.epochs=2", "personalization.alpha=0.3"]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_equals_a_plain_loop(engine: str, adaptive: bool) -> None:
    federation = federate(
        *(*OPTIONS, *PLAIN, f"engine={engine}", f"personalization.adaptive={adaptive}")
    )
    alpha = 0.3
    for round in (1, 2, 3):
        message = federation.server.broadcast(round)
        w = copy(of_model(message.weights))
        steps = list(gradients_of_steps(federation, round, 16, epochs=2))
        if round == 1:
            v = copy(w)
        elif adaptive:
            g = steps[0]({n: alpha * v[n] + (1 - alpha) * w[n] for n in w})
            before, slope = alpha, sum(float(((v[n] - w[n]) * g[n]).sum()) for n in w)
            alpha = min(max(alpha - ETA * slope, 0), 1)
            assert abs(alpha - before) > 1e-4
        for gradient in steps:
            at_w = gradient(w)
            at_mixture = gradient({n: alpha * v[n] + (1 - alpha) * w[n] for n in w})
            v = {n: v[n] - ETA * alpha * at_mixture[n] for n in w}
            w = {n: w[n] - ETA * at_w[n] for n in w}
        updates = list(federation.engine.train([0, 1], message))
        (update,) = (each for each in updates if each.client == 0)
        for each in updates:
            federation.server.add(each)
        federation.server.step()
        for name, value in w.items():
            torch.testing.assert_close(update.weights[name], value, rtol=1e-4, atol=1e-5)
            personal = alpha * v[name] + (1 - alpha) * value
            kept = federation.store.model(0)[name]
            torch.testing.assert_close(kept, personal, rtol=1e-4, atol=1e-5)
            assert (v[name] - value).abs().max() > 1e-3  # two different models


def test_the_shared_model_is_that_of_fedavg() -> None:
    mixed, plain = federate(*OPTIONS), federate(*SMALL, "local.epochs=2")
    for round in (1, 2):
        records = [federation.run_round(round).metrics for federation in (mixed, plain)]
        for key in ("train/loss", "cost/upload_bytes", "cost/download_bytes"):
            assert records[0][key] == records[1][key]
    assert equal(mixed.server.weights, plain.server.weights)
    memory = sum(w.nbytes for w in plain.server.weights.values()) + 2 * 4  # v, and alpha twice
    assert records[0]["cost/client_memory_bytes"] == memory


def test_one_half_needs_the_other() -> None:
    with pytest.raises(InputError, match=r"^gradient=mixture: .* use personalization=apfl"):
        federate("gradient=mixture")
    for other in ("plain", "moreau"):
        with pytest.raises(InputError, match=r"^personalization=apfl: .* use gradient=mixture"):
            federate("personalization=apfl", f"gradient={other}")
