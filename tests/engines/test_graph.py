"""Captured training steps, recorded and repeated on a CPU as a CUDA graph would on a GPU."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from federations import compose, federate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedexp.engines import captured_steps
from fedexp.engines.graph import Graphs, Work, uses_graphs
from fedexp.errors import InputError
from fedexp.federation import Federation

SMALL = ["clients.count=3", "clients.per_round=2", "data.subset=110", "local.epochs=2"]
SMALL += ["evaluation.every=100", "evaluation.personal=off", "objective=train/loss"]
SMALL += ["partition=iid"]  # 2 + 1 short batch
TRAJECTORY = ["regularizer.ipc=1", "regularizer.outer_steps=2", "regularizer.image_lr=1"]
METHODS = [
    ["algorithm=fedavg"],
    ["algorithm=fedprox", "optimizer=adam"],
    ["algorithm=fednh", "local.grad_clip=0.5"],
    ["algorithm=fedgela", "optimizer.lr=0.001"],
    ["algorithm=fedsc"],  # other shapes from the second round
    ["algorithm=scaffold"],
    ["algorithm=feddyn", "regularizer.clip_quadratic=false", "local.grad_clip=1"],
    ["algorithm=feddc"],
    ["algorithm=fedptr_s", *TRAJECTORY],
    ["algorithm=fedgen", "loss.steps=5", "local.grad_clip=10"],  # draws are keyed by the step
    ["algorithm=moon"],
    ["algorithm=fedntd"],
    ["algorithm=fedrcl"],
    ["algorithm=fedlc"],
    ["algorithm=fedrod"],
    ["algorithm=fedrep"],  # two phases
    ["algorithm=ditto"],  # two models
    ["loss=prototype_align", "loss.features=last_epoch"],  # measures the last epoch alone
    ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.batches=2"],
    ["model=mlp", "head=etf", "head.feature_norm=batchnorm_affine"],
]


class Tape(TorchDispatchMode):
    """Records operations, and repeats them on the same tensors without any Python."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero")
        self.operations.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def repeat(self) -> None:
        for func, args, kwargs, before in self.operations:
            after = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def on_tape(work: Work) -> Work:
    with Tape() as tape:
        work()
    return tape.repeat


def captured(*overrides: str, capture: Callable[[Work], Work] = on_tape) -> Federation:
    federation = federate(*overrides)
    federation.engine.graphs = Graphs(federation.engine.resources, capture)
    return federation


def losses_of(federation: Federation, round: int) -> dict[str, float]:
    metrics = federation.run_round(round).metrics
    return {name: value for name, value in metrics.items() if name.startswith("train/")}


@pytest.mark.matrix
@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_full_batches_have_the_same_bits(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short batches are not captured here."""
    monkeypatch.setattr(captured_steps, "_mixes_samples", lambda _: True)
    one, other = federate(*SMALL, *overrides), captured(*SMALL, *overrides)
    for round in (1, 2, 3):
        assert losses_of(one, round) == losses_of(other, round)
        for name, weight in one.server.weights.items():
            assert torch.equal(weight, other.server.weights[name]), name


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides", [each for each in METHODS if "model=mlp" not in each], ids=" ".join
)
def test_short_batches_are_padded(overrides: list[str]) -> None:
    one, other = federate(*SMALL, *overrides), captured(*SMALL, *overrides)
    assert other.engine.graphs is not None
    for round in (1, 2):
        assert losses_of(other, round) == pytest.approx(losses_of(one, round), rel=1e-4)
        for name, weight in one.server.weights.items():
            torch.testing.assert_close(other.server.weights[name], weight, atol=1e-5, rtol=1e-4)
    steps = other.engine.graphs._captured.values()
    assert all(not each.failure for each in steps)
    assert any(each._captured.keys() == {True, False} for each in steps)


def test_a_batch_shorter_than_all_others_is_enough() -> None:
    tiny = [*SMALL, "local.batch_size=64"]  # no client has a full batch
    one, other = federate(*tiny), captured(*tiny)
    one.run_round(1), other.run_round(1)
    for name, weight in one.server.weights.items():
        torch.testing.assert_close(other.server.weights[name], weight, atol=1e-5, rtol=1e-4)


def test_the_learning_rate_may_change_by_round() -> None:
    decaying = [*SMALL, "optimizer.round_decay=0.5"]
    one, other = federate(*decaying), captured(*decaying)
    for round in (1, 2, 3):
        one.run_round(round), other.run_round(round)
        for name, weight in one.server.weights.items():
            torch.testing.assert_close(other.server.weights[name], weight, atol=1e-5, rtol=1e-4)


def test_what_the_server_sent_is_not_written_into() -> None:
    """FedSC's buffers are the tensors of the message; captured steps read copies."""
    federation = captured(*SMALL, "algorithm=fedsc")
    federation.run_round(1)
    message = federation.server.broadcast(2)
    before = {name: tensor.clone() for name, tensor in message.extras["loss"].items()}
    list(federation.engine.train([0, 1, 2], message))
    for name, tensor in message.extras["loss"].items():
        assert torch.equal(tensor, before[name]), name


def fails(work: Work) -> Work:
    work()
    raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def forgets(work: Work) -> Work:
    work()
    return lambda: None


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (fails, "operation not permitted when stream is capturing"),
        (forgets, "a captured step differs from one without capture"),
    ],
)
def test_what_cannot_be_captured_trains_as_ever(
    capture: Callable[[Work], Work], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = federate(*SMALL), captured(*SMALL, capture=capture)
    with caplog.at_level(logging.INFO, logger="fedexp"):
        for round in (1, 2):
            assert losses_of(one, round) == losses_of(other, round)
    for name, weight in one.server.weights.items():
        assert torch.equal(weight, other.server.weights[name]), name
    assert [r.getMessage() for r in caplog.records if "engine.graph" in r.getMessage()] == [
        f"engine.graph: steps are not captured ({reason})"
    ]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["local.keep_optimizer=true"], "local.keep_optimizer=true"),
        (["optimizer._target_=torch.optim.RMSprop", "~optimizer.nesterov"], "RMSprop without"),
        (["+optimizer.dampening=0.1"], "optimizer.dampening"),
    ],
    ids=str,
)
def test_other_optimizers_are_not_captured(
    overrides: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = federate(*SMALL, *overrides), captured(*SMALL, *overrides)
    with caplog.at_level(logging.INFO, logger="fedexp"):
        one.run_round(1), other.run_round(1)
    for name, weight in one.server.weights.items():
        assert torch.equal(weight, other.server.weights[name]), name
    assert sum(reason in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("setting", ["auto", "off", "on"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("captures", [True, False])
def test_when_steps_are_captured(setting: str, device: str, captures: bool) -> None:
    config = compose(f"engine.graph={setting}").engine
    if setting == "on" and not (captures and device == "cuda"):
        with pytest.raises(InputError, match=rf"engine\.graph=on: .*this run is on {device}"):
            uses_graphs(config, captures, torch.device(device))
        return
    expected = captures and device == "cuda" and setting != "off"
    assert uses_graphs(config, captures, torch.device(device)) == expected


def test_on_a_cpu_nothing_is_captured() -> None:
    assert federate(*SMALL).engine.graphs is None
    with pytest.raises(InputError, match=r"engine\.graph=on"):
        federate(*SMALL, "engine.graph=on")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_on_a_gpu(overrides: list[str]) -> None:
    """A CUDA graph against the same operations launched one by one."""
    from lightning.fabric import Fabric

    from fedexp.runtime.assembly import assemble
    from fedexp.runtime.plan import load_data, plan
    from fedexp.tracking.tracker import Trackers

    federations = []
    for setting in ("off", "on"):
        planned = plan(compose(*SMALL, *overrides, f"engine.graph={setting}"))
        fabric = Fabric(accelerator="cuda", devices=1)
        data = load_data(planned.config, planned.source, fabric.device)
        federations.append(assemble(planned, fabric, data, Trackers([])))
    one, other = federations
    for round in (1, 2, 3):
        one.run_round(round), other.run_round(round)
        for name, weight in one.server.weights.items():
            torch.testing.assert_close(other.server.weights[name], weight, atol=1e-4, rtol=1e-3)
    assert other.engine.graphs is not None
    assert all(not each.failure for each in other.engine.graphs._captured.values())
