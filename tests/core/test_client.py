"""The client is an ordinary LightningModule: a stock Trainer fits it and gets the engine's bits."""

import logging
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from support.federations import begin_client, equal, federate
from torch.utils.data import DataLoader

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message


def fit_with_trainer(
    module: ClientModule, epochs: int, batch_size: int, clip: float | None
) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[LightningEnvironment()],
    )
    module.train()
    batches: Any = module.data.local_batches(module.round, batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about workers
        trainer.fit(module, DataLoader(batches, batch_size=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=mlp"],
        ["model=mlp", "optimizer=adam", "regularizer=proximal", "local.grad_clip=0.5"],
        ["model=convnet", "model.width=8", "model.depth=2"],
        ["model=resnet10", "model.norm=batch", "data.subset=100", "clients.count=4"],
    ],
    ids=["sgd", "adam-proximal-clip", "cnn", "batchnorm"],
)
def test_engine_and_trainer_give_equal_bits(overrides: list[str]) -> None:
    federation = federate("local.epochs=2", "clients.count=10", "clients.per_round=2", *overrides)
    message = Message(3, {name: w.clone() for name, w in federation.server.weights.items()})
    (by_engine,) = federation.engine.train([1], message)

    engine: Any = federation.engine
    module = begin_client(engine, 1, message)
    fit_with_trainer(module, 2, 16, engine.resources.local.grad_clip)
    assert equal(by_engine.weights, module.weights)
    assert not equal(by_engine.weights, message.weights)


def test_seat_copies_in_place_and_leaves_other_names() -> None:
    module = federate("clients.count=4", "clients.per_round=2").module
    before = {name: w.clone() for name, w in module.weights.items()}
    pointers = {name: w.data_ptr() for name, w in module.weights.items()}
    changed = next(iter(before))
    module.load({changed: before[changed] + 1})
    assert torch.equal(module.weights[changed], before[changed] + 1)
    assert all(torch.equal(module.weights[n], before[n]) for n in before if n != changed)
    assert pointers == {name: w.data_ptr() for name, w in module.weights.items()}


@pytest.mark.parametrize("batch_size", [1000, 12])
def test_the_loss_gradient_is_that_of_the_mean_over_all_samples(batch_size: int) -> None:
    """Without the pull, whatever the batches, and nothing is left behind."""
    federation = federate("regularizer=proximal", "regularizer.mu=5", "data.subset=200")
    module = begin_client(federation.engine, 1, federation.server.broadcast(1))
    module.regularizer.anchors.set({n: w + 1 for n, w in module.weights.items()})  # type: ignore
    before = {name: w.clone() for name, w in module.weights.items()}
    found = module.loss_gradient(batch_size)
    inputs, labels = next(module.data.batches(10_000))
    names, parameters = zip(*module.named_parameters(), strict=True)
    loss = torch.nn.functional.cross_entropy(module(inputs), labels)
    for name, expected in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-7)
    assert found.keys() == set(names)
    assert equal(module.weights, before)
    assert all(parameter.grad is None for parameter in parameters)


def test_the_loss_gradient_is_in_train_mode_and_keeps_running_statistics() -> None:
    few = ["clients.count=4", "clients.per_round=2", "data.subset=100"]
    federation = federate("model=resnet10", "model.norm=batch", *few)
    module = begin_client(federation.engine, 1, federation.server.broadcast(1))
    module.load({n: w + 3 for n, w in module.weights.items() if n.endswith("running_mean")})
    before = {name: w.clone() for name, w in module.weights.items()}
    found = module.loss_gradient()
    assert equal(module.weights, before)
    module.train()
    inputs, labels = next(module.data.batches(1000))
    loss = torch.nn.functional.cross_entropy(module(inputs), labels)
    weight = module.head.get_parameter("linear.weight")
    (expected,) = torch.autograd.grad(loss, [weight])
    torch.testing.assert_close(found["head.linear.weight"], expected)


def test_a_batch_gradient_may_be_taken_at_other_weights() -> None:
    federation = federate("regularizer=proximal", "data.subset=100")
    module = begin_client(federation.engine, 1, federation.server.broadcast(1))
    before = {name: w.clone() for name, w in module.weights.items()}
    other = {"head.linear.bias": before["head.linear.bias"] + 1}
    inputs, labels = batch = next(module.data.batches(7))
    loss, found = module.batch_gradient(batch, other, scale=2)
    assert equal(module.weights, before)
    bias = other["head.linear.bias"].requires_grad_()
    logits = torch.func.functional_call(module, {"head.linear.bias": bias}, (inputs,))
    expected = 2 * torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, expected.detach())
    assert found.keys() == other.keys()
    torch.testing.assert_close(found["head.linear.bias"], torch.autograd.grad(expected, bias)[0])


def test_train_only_freezes_the_rest() -> None:
    module = federate("clients.count=4", "clients.per_round=2").module
    module.train_only(("head.",))
    assert names(module.trained_parameters()) == {"head.linear.weight", "head.linear.bias"}
    module.train_only(("",))
    assert names(module.trained_parameters()) == names(module.named_parameters())


def names(parameters: Iterable[tuple[str, Any]]) -> set[str]:
    return {name for name, _ in parameters}
