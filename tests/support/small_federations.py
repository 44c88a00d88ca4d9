"""Small federations for the tests of personalizations, and functions to inspect them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fedexp.core.messages import Message, Tensors
from fedexp.measures.scoring.predictions import Predictions
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation
from support.federations import federate, take_step

SMALL = ["clients.count=4", "clients.per_round=2", "data.subset=200", "local.epochs=1"]
ONE_BY_ONE = ["system=lognormal", "coordination=buffered", "coordination.buffer=1"]
PERSONAL = [
    "apple",
    "finetune",
    "local",
    "fedper",
    "fedrep",
    "fedbabu",
    "fedrod",
    "ditto",
    "prototypes_only",
    "fedala",
    "knn_per",
    "fedamp",
    "fedpac",
    "fedas",
    "fedfomo",
    "pfedsim",
    "fedcac",
    "fedphp",
    "feddbe",
    "gpfl",
    "fedgh",
    "pfedhn",
    "pfedla",
    "pfl_da",
    "fedah",
    "fedcp",
    "fedmd",
]
WITH_GLOBAL = (
    *("none", "finetune", "finetune_best", "received", "second_model", "fedbabu", "fedrod"),
    *("fedetf", "ditto", "pfedme", "apfl", "fedah", "fedala", "knn_per", "feddbe", "fedphp"),
)
"""The personalizations that have a global model."""


def personalized(personalization: str, *overrides: str) -> Federation:
    """A small federation with this personalization."""
    return federate(*SMALL, f"personalization={personalization}", *overrides)


def with_batchnorm(input_shape: tuple[int, ...]) -> nn.Module:
    """A tiny body with running statistics."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())


def with_dropout(input_shape: tuple[int, ...]) -> nn.Module:
    """A tiny body that draws random numbers while it trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5))


NOT_AN_MLP = ["~model.hidden", "~model.feature_dim", "~model.rectify", "~model.batch_norm"]
BATCHNORM = ["model._target_=support.small_federations.with_batchnorm", *NOT_AN_MLP]
DROPOUT = ["model._target_=support.small_federations.with_dropout", *NOT_AN_MLP]


def copy(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def moved(before: Tensors, after: Tensors) -> set[str]:
    """The names of the tensors that changed."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def personal(federation: Federation, round: int) -> dict[int, Predictions]:
    """Client -> what its personal model predicts after ``round``."""
    return dict(Scoring(federation.engine).score_personal(federation.server.broadcast(round)))


def alike(some: dict[int, Predictions], others: dict[int, Predictions]) -> bool:
    """Whether the same clients have personal models, with the same predictions to the bit."""
    return some.keys() == others.keys() and all(
        one.loss == others[client].loss and torch.equal(one.correct, others[client].correct)
        for client, one in some.items()
    )


def gradient(federation: Federation, client: int, message: Message, weights: Tensors) -> Tensors:
    """The gradient of a client's mean cross-entropy over all its data, by plain PyTorch."""
    module = federation.engine.resources.load_global(message)
    module.load(weights)
    parameters = dict(module.backbone.named_parameters(prefix="backbone"))
    parameters |= dict(module.head.named_parameters(prefix="head"))
    for parameter in parameters.values():
        parameter.requires_grad_()
    (batch,) = federation.data.clients[client].batches(1000)
    inputs, targets = batch
    loss: Any = nn.functional.cross_entropy(module.head(module.backbone(inputs)), targets)
    found = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def train(federation: Federation, round: int, cohort: Sequence[int] = (0, 1)) -> None:
    """One round of this cohort, without evaluation."""
    message = federation.server.broadcast(round)
    take_step(federation.server, federation.engine.train(cohort, message))


def assert_models_agree(
    engine: str,
    words: Sequence[str],
    cohorts: Sequence[Sequence[int]] = ((0, 1), (1, 2), (0, 2)),
    tolerance: float = 1e-5,
) -> None:
    """Clients' personal models, and the weights they would get next, are those of a serial run."""
    one, other = (federate(*SMALL, *words, f"engine={each}") for each in ("serial", engine))
    for federation in (one, other):
        for round, cohort in enumerate(cohorts, start=1):
            train(federation, round, cohort)
    for client in set().union(*cohorts):
        expected, found = (
            {
                "personal": each.store.model(client),
                "next": each.server.broadcast(len(cohorts) + 1).to_client(client).weights,
            }
            for each in (one, other)
        )
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


ONE_STEP = ["local.batch_size=1000", "optimizer.momentum=0", "optimizer.weight_decay=0"]
"""An epoch is one plain gradient step of this length:"""
RATE = 0.02
