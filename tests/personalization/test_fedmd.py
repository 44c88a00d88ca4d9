"""FedMD: two turns of a client and the mean scores by plain PyTorch, and what is sent."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate, take_step
from support.plain_mlp import features, logits
from support.small_federations import ONE_STEP, assert_models_agree, copy, personalized, train
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.errors import InputError

RATE = 0.1
WHOLE = ["personalization.samples=40", "personalization.batch_size=100"]
STEP = [*ONE_STEP, f"optimizer.lr={RATE}", "optimizer.round_decay=1", *WHOLE]


def scores(weights: Tensors, inputs: Tensor) -> Tensor:
    return logits(weights, features(weights, inputs))


def stepped(weights: Tensors, loss: Any, inputs: Tensor, targets: Tensor) -> Tensors:
    """The weights after a step of plain SGD on the loss of the scores and the targets."""
    weights = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    slopes = torch.autograd.grad(loss(scores(weights, inputs), targets), list(weights.values()))
    return {n: (w - RATE * g).detach() for (n, w), g in zip(weights.items(), slopes, strict=True)}


def test_two_rounds_by_plain_loops() -> None:
    federation = personalized("fedmd", *STEP, "personalization.pretraining=2")
    initial = copy(federation.engine.resources.initial)
    models = dict.fromkeys((0, 1), initial)
    public: Tensors = {}
    mean = torch.zeros(())
    for round in (1, 2):
        message = federation.server.broadcast(round)
        public = public or dict(message.to_client(0).extras["personalization"])
        inputs, targets = public["inputs"], public["targets"]
        for client in (0, 1):
            w = models[client]
            for _ in range(2 if round == 1 else 0):
                w = stepped(w, F.cross_entropy, inputs, targets)
            if round == 2:
                w = stepped(w, lambda found, aim: (found - aim).abs().mean(), inputs, mean)
            own, y = next(iter(federation.data.clients[client].batches(1000)))
            models[client] = stepped(w, F.cross_entropy, own, y)
        updates = list(federation.engine.train([0, 1], message))
        mean = torch.stack([scores(models[n], inputs) for n in (0, 1)]).mean(dim=0)
        take_step(federation.server, updates)
        sent = federation.server.broadcast(round + 1).extras["personalization"]
        torch.testing.assert_close(sent["scores"], mean, rtol=1e-3, atol=1e-4)
    for client, model in models.items():
        found = federation.store.model(client)
        for name, value in model.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def test_the_public_samples_are_sent_to_each_client_once() -> None:
    federation = personalized("fedmd", *WHOLE)
    samples, means = 4 * 40 * 64 + 8 * 40, 4 * 40 * 10
    down = []
    for round, cohort in enumerate(([0, 1], [1, 2], [0, 2]), start=1):
        message = federation.server.broadcast(round)
        down.append([message.to_client(client).nbytes for client in cohort])
        take_step(federation.server, federation.engine.train(cohort, message))
    assert down == [[samples, samples], [means, means + samples], [means, means]]


def test_the_classes_of_the_public_samples_are_balanced() -> None:
    federation = personalized("fedmd", *WHOLE)
    message = federation.server.broadcast(1).to_client(0)
    assert message.extras["personalization"]["targets"].bincount().tolist() == [4] * 10


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_models_agree(engine, ["personalization=fedmd", *WHOLE])


def test_scores_without_a_mean_are_refused() -> None:
    with pytest.raises(InputError, match="gives absent classes the score -inf"):
        federate("personalization=fedmd", "head=etf", "head.adapt=true", "head.missing=exclude")


def test_a_loss_that_leaves_out_classes_changes_no_scores() -> None:
    federation = personalized("fedmd", "loss=balanced_softmax", *WHOLE)
    train(federation, 1)
    sent = federation.server.broadcast(2).extras["personalization"]
    assert sent["scores"].isfinite().all()
