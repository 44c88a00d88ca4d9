"""Token sequences and a recurrent model in every engine, with several methods and settings."""

from pathlib import Path

import pytest
import torch
from support.federations import assert_alike, assert_engine_agrees, federate, weights_after
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play
from support.refusals import refused
from torch import nn

from fedexp.errors import InputError


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    write_play(tmp_path / "play.txt")
    sizes = ["clients.count=3", "clients.per_round=3", "local.epochs=1", "local.batch_size=32"]
    data = ["data=text", f"data.path={tmp_path / 'play.txt'}", "partition=natural"]
    # An ETF and equidistant prototypes need as many features as there are characters.
    model = [*SMALL_LSTM, "model.hidden=24", "model.layers=1"]
    return [*data, *PLAY_OPTIONS, *model, *sizes, "measure.personal.every=1"]


METHODS = ["fedavg", "fedprox", "scaffold", "moon", "fednh", "fedgela", "fedsc", "fedrod"]


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS)
def test_stacked_clients_train_as_one_after_another(small: list[str], method: str) -> None:
    small = [*small, f"algorithm={method}"]
    assert_alike(federate(*small), federate(*small, "engine=vectorized"), rounds=2)


@pytest.mark.parametrize("others", [["local.grad_clip=0.5"], ["optimizer=adam"], ["sampler=hics"]])
def test_stacked_clients_with_other_settings(small: list[str], others: list[str]) -> None:
    assert_alike(federate(*small, *others), federate(*small, *others, "engine=vectorized"), 2)


def test_a_stock_trainer_gives_the_same_bits(small: list[str]) -> None:
    assert_engine_agrees("trainer", small, rounds=2)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_sixteen_bits_stay_near(small: list[str], engine: str) -> None:
    exact = weights_after(federate(*small), 1)
    found = weights_after(federate(*small, f"engine={engine}", "engine.precision=bf16-mixed"), 1)
    for name, value in exact.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], value, atol=0.02, rtol=0.1)


def test_hics_chooses_by_the_head_s_classes(small: list[str]) -> None:
    """The head has one bias for each character, from which HiCS estimates label entropies."""
    federation = federate(*small, "sampler=hics", "clients.per_round=1")
    for round in (1, 2, 3, 4):
        outcome = federation.run_round(round)
    assert outcome.metrics["clients/quarantined"] == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=mlp", "^model: mlp takes numbers, .* use model=char_lstm"),
        ("data.augment=flip", r"^data\.augment=flip: needs images, .* should be none"),
        ("algorithm=fedptr", "^regularizer: learns synthetic inputs, but the inputs are tokens"),
    ],
)
def test_what_tokens_cannot_do_is_one_line(small: list[str], override: str, message: str) -> None:
    without_model = [each for each in small if not each.startswith("model")]
    overrides = without_model if override.startswith("model") else small
    with refused(message):
        federate(*overrides, override)


class TorchRecurrent(nn.Module):
    """A user's own model with a layer of PyTorch's that cannot be stacked."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        vocabulary: int,
        embedding_dim: int,
        hidden: int,
        layers: int,
        feature_dim: int | None,
        projection: str,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        self.lstm = nn.GRU(embedding_dim, hidden, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.lstm(self.embedding(tokens))[0][:, -1]
        return z


def test_own_recurrent_models_run_in_serial_and_are_refused_stacked(small: list[str]) -> None:
    own = [*small, "model._target_=test_tokens.TorchRecurrent"]
    weights_after(federate(*own), 1)
    with pytest.raises(
        InputError, match=r"^engine=vectorized: backbone\.lstm is a recurrent layer .* engine=s"
    ):
        federate(*own, "engine=vectorized")
