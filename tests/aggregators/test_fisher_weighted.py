"""FedAS's average: the trace by hand and by plain PyTorch, and the average."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import assert_engine_agrees, begin_client, federate
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play
from torch import Tensor, nn

from fedexp.aggregators.fisher_weighted import FisherWeighted
from fedexp.core.messages import PartUpdate, Update
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
LOGISTIC = ["model._target_=support.federations.flatten", "~model.hidden", "~model.feature_dim"]
LOGISTIC += ["~model.rectify", "~model.batch_norm"]


def federation(*overrides: str) -> Federation:
    return federate(*SMALL, "aggregator=fisher_weighted", *overrides)


def trace(made: Federation, client: int) -> tuple[float, Any]:
    """The report of a client that has not trained, and the client."""
    module = begin_client(made.engine, client, made.server.broadcast(1))
    part: Any = made.server.parts["aggregator"]
    return part.report(module, {})["fisher_trace"].item(), module


def test_the_trace_of_logistic_regression_by_hand() -> None:
    """The gradient for a sample is (p - e_y) times (x, 1)."""
    found, module = trace(federation(*LOGISTIC), 1)
    ((inputs, y),) = module.data.batches(1000)
    x = inputs.flatten(1)
    with torch.no_grad():
        p = module(inputs).softmax(dim=1)
    error = p - nn.functional.one_hot(y, 10)
    expected = error.square().sum(dim=1) * (x.square().sum(dim=1) + 1)
    assert found == pytest.approx(expected.mean().item(), rel=1e-5)


def square(module: Any, x: Tensor, y: Tensor) -> float:
    loss = nn.functional.cross_entropy(module(x), y)
    parameters = [*module.backbone.parameters(), *module.head.parameters()]
    gradients: Any = torch.autograd.grad(loss, parameters)
    return float(sum(g.square().sum() for g in gradients))


@pytest.mark.parametrize("overrides", [[], ["personalization=fedper"]], ids=["all", "fedper"])
def test_the_trace_is_the_mean_over_samples(overrides: list[str]) -> None:
    """With a private head, too: its gradient counts."""
    found, module = trace(federation(*overrides), 2)
    module.eval()
    module.train_only(("",))
    ((inputs, y),) = module.data.batches(1000)
    squares = [square(module, inputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    assert found == pytest.approx(sum(squares) / len(y), rel=1e-5)


def test_the_released_form_sums_over_batches() -> None:
    found, module = trace(federation("aggregator.gradients=batch", "local.batch_size=8"), 2)
    module.eval()
    module.train_only(("",))
    batches = list(module.data.local_batches(1, 8))
    assert len(batches) > 1
    assert found == pytest.approx(sum(square(module, x, y) for x, y in batches), rel=1e-5)


def test_gradients_are_taken_in_chunks() -> None:
    whole, _ = trace(federation(), 2)
    made = federation()
    part: Any = made.server.parts["aggregator"]
    part._chunk = 7
    assert trace(made, 2)[0] == pytest.approx(whole, rel=1e-6)


def update(client: int, w: float, fisher: float, draws: int = 1) -> Update:
    report = {"aggregator": {"fisher_trace": torch.tensor(fisher)}}
    return Update(client, 10 * client + 1, {"w": torch.tensor([w])}, report, draws=draws)


def test_the_average_by_hand() -> None:
    part = FisherWeighted("sample", 16)
    current = {"w": torch.zeros(1)}
    for each in (update(0, 1.0, 3.0), update(1, 2.0, 1.0), update(2, 4.0, 0.5, draws=2)):
        part.add(each, current)
    assert part.merge(current)["w"].item() == pytest.approx((3 + 2 + 4) / (3 + 1 + 1))
    part.add(PartUpdate(0, 1, {"w": torch.tensor([6.0])}, {"fisher_trace": torch.ones(())}), {})
    assert part.merge(current)["w"].item() == 6


def test_several_processes_give_the_same_average() -> None:
    parts = FisherWeighted("sample", 16), FisherWeighted("sample", 16)
    current = {"w": torch.zeros(1)}
    parts[0].add(update(0, 1.0, 3.0), current)
    parts[1].add(update(1, 2.0, 1.0), current)
    shares = [part.contribution() for part in parts]
    sums = {"w": sum(share.sums["w"] for share in shares)}
    parts[0].set_reduced(sums, [share.items for share in shares])  # type: ignore[arg-type]
    assert parts[0].merge(current)["w"].item() == pytest.approx(5 / 4)


def test_models_without_any_gradient_have_an_average() -> None:
    made = federation(*LOGISTIC)
    module = begin_client(made.engine, 1, made.server.broadcast(1))
    labels = module.data.labels
    with torch.no_grad():
        module.head.linear.weight.zero_()
        module.head.linear.bias.copy_(1e6 * nn.functional.one_hot(labels[0], 10))
    module.train_on(_Only(module.data, labels[0].item()))
    part: Any = made.server.parts["aggregator"]
    report = part.report(module, {})
    assert 0 < report["fisher_trace"].item() < 1e-30
    current = {"w": torch.zeros(1)}
    part.add(Update(1, 5, {"w": torch.tensor([2.0])}, {"aggregator": report}), current)
    assert part.merge(current)["w"].item() == pytest.approx(2)


class _Only:
    """A client's data, only the samples of one class."""

    def __init__(self, data: Any, label: float) -> None:
        self._data, self._label = data, label
        self.num_samples = int((data.labels == label).sum())

    def batches(self, batch_size: int) -> Any:
        for x, y in self._data.batches(batch_size):
            yield x[y == self._label], y[y == self._label]


def test_one_number_is_sent() -> None:
    plain = federate(*SMALL).run_round(1).metrics
    weighted = federation().run_round(1).metrics
    assert weighted["cost/upload_bytes"] == plain["cost/upload_bytes"] + 4 * 4
    assert weighted["cost/download_bytes"] == plain["cost/download_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
@pytest.mark.parametrize("gradients", ["sample", "batch"])
def test_every_engine_gives_the_same_model(engine: str, gradients: str) -> None:
    words = [*SMALL, "aggregator=fisher_weighted", f"aggregator.gradients={gradients}"]
    assert_engine_agrees(engine, words, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        ["head=prototype", "local.grad_clip=10"],
        ["personalization=ditto", "regularizer=proximal"],
        ["loss=moon"],
    ],
    ids=lambda others: others[0],
)
def test_it_combines_with_other_parts(others: list[str]) -> None:
    made = federation(*others)
    for round in (1, 2):
        metrics = made.run_round(round).metrics
    assert 0 < metrics["train/loss"] < 100
    assert all(value.isfinite().all() for value in made.server.weights.values())


@pytest.mark.parametrize("gradients", ["sample", "batch"])
def test_sequences_of_tokens(tmp_path: Path, gradients: str) -> None:
    """Their model changes its kernels for gradients of single samples."""
    write_play(tmp_path / "play.txt")
    made = federate(
        *("data=text", f"data.path={tmp_path / 'play.txt'}", "partition=natural", *PLAY_OPTIONS),
        *(*SMALL_LSTM, "model.hidden=24", "model.layers=1", "clients.count=3"),
        *("clients.per_round=3", "local.epochs=1", "local.batch_size=32"),
        *("algorithm=fedas", f"aggregator.gradients={gradients}"),
    )
    for round in (1, 2):
        assert 0 < made.run_round(round).metrics["train/loss"] < 100


def test_a_padding_mask_needs_gradients_of_batches(tmp_path: Path) -> None:
    write_play(tmp_path / "play.txt")
    tiny = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16"
    options = [
        *("data=text", f"data.path={tmp_path / 'play.txt'}", "partition=natural", *PLAY_OPTIONS),
        *("model=hf", "model.name=bert", f"model.config={{{tiny}}}", "model.pad_token=0"),
        *("clients.count=3", "clients.per_round=3", "local.epochs=1", "local.batch_size=32"),
    ]
    made = federate(*options, "aggregator=fisher_weighted")
    reason = r"^aggregator\.gradients=sample: .*; use aggregator\.gradients=batch, .*pad_token=null"
    with pytest.raises(InputError, match=reason):
        made.run_round(1)
    made = federate(*options, "aggregator=fisher_weighted", "aggregator.gradients=batch")
    assert 0 < made.run_round(1).metrics["train/loss"] < 100


@pytest.mark.slow
@pytest.mark.parametrize("gradients", ["sample", "batch"])
def test_the_contract(gradients: str) -> None:
    check_part("aggregator=fisher_weighted", f"aggregator.gradients={gradients}")
