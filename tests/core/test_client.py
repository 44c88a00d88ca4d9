"""The client is an ordinary LightningModule: a stock Trainer fits it and gets the engine's bits."""

import logging
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from federations import begin_client, federate
from lightning import Trainer
from torch.utils.data import DataLoader

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Tensors


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
    )
    module.train()
    batches: Any = module.data.local_batches(module.round, batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about workers
        trainer.fit(module, DataLoader(batches, batch_size=None))


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


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
    module = federate("clients.count=4", "clients.per_round=2").engine.resources.module
    before = {name: w.clone() for name, w in module.weights.items()}
    pointers = {name: w.data_ptr() for name, w in module.weights.items()}
    changed = next(iter(before))
    module.load({changed: before[changed] + 1})
    assert torch.equal(module.weights[changed], before[changed] + 1)
    assert all(torch.equal(module.weights[n], before[n]) for n in before if n != changed)
    assert pointers == {name: w.data_ptr() for name, w in module.weights.items()}


def test_train_only_freezes_the_rest() -> None:
    module = federate("clients.count=4", "clients.per_round=2").engine.resources.module
    module.train_only(("head.",))
    assert names(module.trained_parameters()) == {"head.linear.weight", "head.linear.bias"}
    module.train_only(("",))
    assert names(module.trained_parameters()) == names(module.named_parameters())


def names(parameters: Iterable[tuple[str, Any]]) -> set[str]:
    return {name for name, _ in parameters}
