"""Personal models are scored in a stack as one after another, in every engine."""

import pytest
import torch
from support.federations import federate
from support.small_federations import BATCHNORM, NOT_AN_MLP
from torch import nn

from fedexp.data.federated import ClientData
from fedexp.engines.base import Engine
from fedexp.measures.scoring.predictions import Predictions, Selection
from fedexp.measures.scoring.scoring import Scoring
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=5", "clients.per_round=5", "local.epochs=1", "data.subset=200"]
SMALL += ["rounds=1", "data.validation=0.1"]
RECURRENT = ["model._target_=test_stacked_scores.Recurrent", *NOT_AN_MLP]


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch, which cannot be stacked."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.lstm(inputs.view(-1, 8, 8))[0][:, -1]
        return z


def trained(*overrides: str) -> Federation:
    federation = federate(*SMALL, *overrides)
    list(federation.engine.train(range(5), federation.server.broadcast(1)))
    return federation


def own_samples(client: ClientData) -> Selection:
    """Different numbers of samples, one client without any."""
    return Selection(torch.arange(3 * client.client, 10 * client.client), 4 * client.client)


def scored(engine: Engine, message: object, size: int, own: bool) -> dict[int, Predictions]:
    scoring = Scoring(engine)
    scoring._stacked._size = size
    select = own_samples if own else lambda client: None
    return dict(scoring.score_personal(message, select=select))  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        ["engine=serial"],
        ["engine=vectorized", "head=cosine"],
        ["engine=serial", "head=etf", "evaluation.batch_size=7"],
        ["engine=serial", *BATCHNORM],
        ["engine=vectorized", "algorithm=fedproto"],
        ["engine=vectorized", "personalization=finetune"],
    ],
    ids=lambda each: " ".join(each[:2]),
)
def test_a_stack_gives_the_same_predictions(overrides: list[str], own: bool) -> None:
    federation = trained(*overrides)
    engine, message = federation.engine, federation.server.broadcast(1)
    alone = scored(engine, message, 1, own)
    stacked = scored(engine, message, 2, own)
    assert alone.keys() == stacked.keys() == set(range(5))
    for client, one in alone.items():
        other = stacked[client]
        assert (one.correct != other.correct).sum() <= 1
        assert one.loss == pytest.approx(other.loss, rel=1e-4, nan_ok=True)
        assert one.class_vectors.keys() == other.class_vectors.keys() or own
        for name in one.class_vectors:
            torch.testing.assert_close(
                one.class_vectors[name], other.class_vectors[name], rtol=1e-4, atol=1e-4
            )
        assert len(one.validation) == len(other.validation) > 0
        assert (one.head_correct is None) == (other.head_correct is None)


@pytest.mark.parametrize(
    ("overrides", "stacks"), [([], True), (BATCHNORM, True), (RECURRENT, False)]
)
def test_what_cannot_be_stacked_is_scored_alone(overrides: list[str], stacks: bool) -> None:
    size = Scoring(federate(*SMALL, *overrides).engine)._stacked.size
    assert size > 5 if stacks else size == 1
