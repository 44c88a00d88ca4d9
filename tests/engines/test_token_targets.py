"""A target for each token: training and scores in every engine, against a loop of its own."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_alike, assert_engine_agrees, federate
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play
from torch.func import functional_call

from fedexp.core.token_rows import IGNORED
from fedexp.errors import InputError


@pytest.fixture
def play(tmp_path: Path) -> list[str]:
    write_play(tmp_path / "play.txt")
    sizes = ["clients.count=3", "clients.per_round=3", "local.epochs=2", "local.batch_size=16"]
    data = ["data=text", f"data.path={tmp_path / 'play.txt'}", "partition=natural"]
    each = ["data.targets=each", "measure.personal=null", "algorithm=fedavg"]
    return [*data, *PLAY_OPTIONS, *SMALL_LSTM, *sizes, *each]


METHODS = ["fedavg", "fedprox", "scaffold", "feddyn", "fedadam"]


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS)
def test_stacked_clients_train_as_one_after_another(play: list[str], method: str) -> None:
    play = [*play, f"algorithm={method}"]
    assert_alike(federate(*play), federate(*play, "engine=vectorized"), rounds=2)


SAMPLERS = ["power_of_choice", "clustered", "clustered_by_size", "round_robin"]
SAMPLERS += ["divfl", "divfl_ideal", "divfl_released", "divfl_hics"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_that_ask_for_no_class(play: list[str], sampler: str) -> None:
    federation = federate(*play, f"sampler={sampler}", "clients.per_round=2")
    for round in (1, 2):
        assert federation.run_round(round).metrics["clients/quarantined"] == 0


def test_a_stock_trainer_gives_the_same_bits(play: list[str]) -> None:
    assert_engine_agrees("trainer", play, rounds=2)


def test_a_step_is_that_of_torch_s_loss(play: list[str]) -> None:
    """One client, one step with its whole data: w - lr times the gradient over scored tokens."""
    plain = ["optimizer=sgd_plain", "optimizer.lr=0.5", "optimizer.weight_decay=0"]
    first = ["sampler=round_robin", "clients.per_round=1"]
    whole = ["local.epochs=1", "local.batch_size=1000", "local.grad_clip=null"]
    federation = federate(*play, *plain, *first, *whole)
    before = {name: value.clone() for name, value in federation.server.weights.items()}
    federation.run_round(1)
    data, module = federation.data, federation.module
    inputs, targets = data.train.gather(data.clients[0].train_index)
    assert IGNORED in targets
    leaves = {name: value.clone().requires_grad_() for name, value in before.items()}
    logits = functional_call(module, leaves, (inputs,))
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    for (name, value), gradient in zip(
        before.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True
    ):
        torch.testing.assert_close(
            federation.server.weights[name], value - 0.5 * gradient, atol=1e-6, rtol=1e-4
        )


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_scores_are_those_of_the_scored_tokens(play: list[str], engine: str) -> None:
    federation = federate(*play, f"engine={engine}", "data.validation=0.2")
    metrics = federation.run_round(1).metrics
    assert "geometry/feature_angle" in metrics
    assert "geometry/feature_angle_global_existing" not in metrics
    data, module = federation.data, federation.module
    module.load(federation.server.weights)
    for name, samples in {"global": data.test, "validation": data.validation}.items():
        right, losses = 0, []
        for inputs, targets in samples.batches(1):
            with torch.no_grad():
                logits = module.eval()(inputs)[0]
            for row, target in zip(logits, targets[0], strict=True):
                if target != IGNORED:
                    right += int(row.argmax() == target)
                    losses.append(F.cross_entropy(row, target))
        assert metrics[f"{name}/accuracy"] == pytest.approx(right / len(losses))
        assert metrics[f"{name}/loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


NEEDS = "needs one class for each sample, which play lacks"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("head=cosine", rf"^head \(Cosine\): {NEEDS}; take another head$"),
        ("loss=logit_calibration", rf"^loss \(LogitCalibration\): {NEEDS}; take another loss$"),
        ("algorithm=fednh", rf"^head \(Prototype\): {NEEDS}"),
        ("algorithm=fedsc", rf"^loss \(RpclCpdr\): {NEEDS}"),
        ("algorithm=creff", rf"^head \(Retrained\): {NEEDS}"),
        ("aggregator=disco", rf"^aggregator \(Disco\): {NEEDS}"),
        ("sampler=hics", rf"^sampler \(HiCS\): {NEEDS}; take another sampler$"),
        ("personalization=fedrod", rf"^personalization \(FedROD\): {NEEDS}"),
        ("partition=dirichlet", rf"^partition=dirichlet: {NEEDS}; use natural or iid$"),
        (
            "partition.long_tail=10",
            rf"^partition\.long_tail=10\.0: {NEEDS}; should be null$",
        ),
        ("+measure=features", r"^measure\.features: needs one class for each sample, which "),
        (
            "+measure=loss_surface",
            r"^measure\.loss_surface: needs one class for each sample, which ",
        ),
        ("+measure=membership", r"^measure\.membership: needs one class for each sample, which "),
    ],
)
def test_what_needs_one_class_a_sample_is_refused_in_one_line(
    play: list[str], override: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        federate(*play, override)


def test_personal_models_cannot_be_scored(play: list[str]) -> None:
    play.remove("measure.personal=null")
    with pytest.raises(InputError, match=r"^measure\.personal: needs one class for each sample"):
        federate(*play)


def test_flipped_labels_are_refused(play: list[str]) -> None:
    with pytest.raises(InputError, match=r"^faults\.attack=label_flip: needs one class for each"):
        federate(*play, "faults=byzantine", "faults.attack=label_flip")
    federate(*play, "faults=byzantine", "faults.byzantine=0.34").run_round(1)


def test_clients_of_equal_size_from_any_roles(play: list[str]) -> None:
    federation = federate(*play, "partition=iid", "data.subset=60")
    assert federation.data.sizes.tolist() == [20, 20, 20]
    assert 0 <= federation.run_round(1).metrics["global/accuracy"] <= 1
