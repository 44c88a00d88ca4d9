"""No engine waits for a GPU before the end of a client's turn.

The clients train on the device ``meta``, whose tensors have shapes and no values. Whatever would
wait for a GPU fails there: reading a number, choosing by a mask. Copies from the CPU are counted:
only ``to_device`` may make them.
"""

import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from support.federations import compose, federate, take_step
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedexp.core.messages import Message
from fedexp.data.load import load_data
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

META = torch.device("meta")
SMALL = ["clients.count=3", "clients.per_round=2", "data.subset=90", "local.epochs=2"]
SMALL += ["measure.global.every=100", "measure.personal=null", "objective=train/loss"]
SMALL += ["+optimizer.fused=false"]  # there is no such kernel for the device meta
ETF = ["head=etf", "head.adapt=true"]
PARTS = [
    *(["loss=balanced_softmax"], ["algorithm=fedlc"], ["algorithm=fedrs"], ["algorithm=moon"]),
    *(["algorithm=fedntd"], ["algorithm=fedsc"], ["algorithm=fedrcl"], ["algorithm=fedgen"]),
    ["algorithm=fedsc", "loss.normalizer=dataset"],
    *(["loss=prototype_align", f"loss.features={each}"] for each in ("trained", "last_epoch")),
    *(["algorithm=fednh"], ["head=cosine"], ["algorithm=fedge"], ["algorithm=fedgela"]),
    *([*ETF, f"head.feature_norm={each}"] for each in ("l2", "batchnorm", "batchnorm_affine")),
    [*ETF, "head.phi_normalization=population"],
    *(["algorithm=fedprox"], ["algorithm=scaffold"], ["algorithm=feddyn"], ["algorithm=feddc"]),
    ["algorithm=scaffold", "regularizer.estimate=gradient"],
    ["algorithm=feddyn", "regularizer.clip_quadratic=false", "local.grad_clip=1"],
    ["algorithm=fedptr_s", "regularizer.ipc=1"],  # the server learns images
    *([f"algorithm={each}"] for each in ("fedper", "fedrep", "fedbabu", "fedrod", "ditto")),
    *(["algorithm=fedproto"], ["personalization=finetune"], ["personalization=local"]),
    *(["algorithm=fedavg"], ["algorithm=fedcda"], ["local.grad_clip=1"]),
    *(["local.steps=5"], ["local.epochs=1.5"], ["local.epochs=[1,3]"]),
    ["optimizer=adam"],
    ["faults=unreliable", "faults.nan=0.5", "faults.straggle=0.5"],
]
"""A selection; ``tests/testing/test_runs_on_device.py`` has every option that the pages run."""

WAIT_IN_BEGIN = [
    ["algorithm=creff"],  # gradients of the client's own classes, which it looks up
    ["algorithm=fedprox_synthetic", "regularizer.ipc=1"],  # real images of its own classes
    ["algorithm=fedptr", "regularizer.ipc=1"],  # looks whether the global model changed
]
"""The exceptions: what such a part does before training costs far more than waiting."""


class MetaFabric(Fabric):
    """Fabric whose device has no values."""

    @property
    def device(self) -> torch.device:
        return META


class CopiesFromCpu(TorchDispatchMode):
    """Finds copies from the CPU to the device outside of ``to_device``."""

    found: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.found = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        source = args[{"_to_copy": 0, "copy_": 1}[name]] if name in ("_to_copy", "copy_") else None
        from_cpu = isinstance(source, Tensor) and source.is_cpu and source.numel()
        if from_cpu and result.device == META:
            frames = [frame.f_code for frame, _ in traceback.walk_stack(None)]
            if not any(code.co_name == "to_device" for code in frames):
                ours = (code for code in frames if "/fedexp/" in code.co_filename)
                self.found.append(next(map(str, ours), name))
        return result


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each time that an engine waits for the device, how many rows it reads."""
    rows: list[int] = []

    def on_host(values: Sequence[Tensor]) -> list[list[float]]:
        rows.append(len(values))
        return [[1.0] * len(each) for each in values]  # all updates are finite

    monkeypatch.setattr("fedexp.engines.turn.on_host", on_host)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # not for meta
    return rows


def on_meta(*overrides: str) -> Federation:
    planned = plan(compose(*overrides))
    fabric = MetaFabric(accelerator="cpu", devices=1, plugins=[LightningEnvironment()])
    data = load_data(planned.config, planned.source, META)
    return Federation(planned, fabric, data)


def sent(message: Message) -> Message:
    """The same message on the device."""
    extras = {
        part: {name: tensor.to(META) for name, tensor in tensors.items()}
        for part, tensors in message.extras.items()
    }
    weights = {name: tensor.to(META) for name, tensor in message.weights.items()}
    return Message(message.round, weights, extras)


def train_two_rounds(waits: list[int], *overrides: str) -> list[str]:
    """Clients' turns in the second and third round, with what a server really sends.

    Returns the places of copies from the CPU.
    """
    real, federation = federate(*overrides), on_meta(*overrides)
    take_step(real.server, real.engine.train([0, 1], real.server.broadcast(1)))
    waits.clear()
    with CopiesFromCpu() as copies:
        for round in (2, 3):
            message = sent(real.server.broadcast(round))
            copies.found.clear()  # of ``sent``, and of what is moved once
            for update in federation.engine.train([0, 1], message):
                assert federation.quarantine.accepts(update, round)
    return copies.found


@pytest.mark.matrix
@pytest.mark.parametrize("overrides", PARTS, ids=" ".join)
def test_a_turn_waits_once(overrides: list[str], waits: list[int]) -> None:
    copies = train_two_rounds(waits, *SMALL, *overrides)
    assert waits == [1] * 4  # two clients, two rounds
    assert copies == []


@pytest.mark.parametrize("overrides", WAIT_IN_BEGIN, ids=" ".join)
def test_the_exceptions_are_no_longer_than_they_must(
    overrides: list[str], waits: list[int]
) -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match=r"(?i)meta") as caught:
        train_two_rounds(waits, *SMALL, *overrides)
    names = [entry.name for entry in caught.traceback]
    assert "begin" in names
    assert "fit" not in names


@pytest.mark.parametrize("overrides", [["algorithm=fedavg"], ["algorithm=fedsc"]], ids=" ".join)
def test_a_stack_waits_once(overrides: list[str], waits: list[int]) -> None:
    stacked = ["engine=vectorized", "engine.clients_per_chunk=2"]
    copies = train_two_rounds(waits, *SMALL, *overrides, *stacked)
    assert waits == [2, 2]  # rows of two clients, in each round
    assert copies == []
