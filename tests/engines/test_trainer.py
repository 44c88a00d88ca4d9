"""A stock Trainer for each client gives the bits of the default engine."""

import signal
from typing import Any

import pytest
import torch
from lightning import Callback
from support.federations import federate
from torch import nn

from fedexp.errors import InputError
from fedexp.runtime.interrupts import Interrupts

SCHEDULER = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
SCHEDULED = f"engine.callbacks=[{{_target_:{SCHEDULER},scheduling:{{1:2}}}}]"
ACCUMULATING = {
    "engine.options.accumulate_grad_batches=2": "+engine.options.accumulate_grad_batches=2",
    "engine.callbacks: GradientAccumulationScheduler": SCHEDULED,
}
SMALL = ["clients.count=5", "clients.per_round=3", "data.subset=200", "local.epochs=2"]


class Counting(Callback):
    """Counts the fits of all clients, and reads an option."""

    fits = option = 0

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        type(self).fits += 1
        type(self).option = trainer.log_every_n_steps


class Stopping(Callback):
    """Ends the training after its first epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = True


class Signalling(Callback):
    """Sends this process a signal in the first batch of each fit."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if not trainer.global_step:
            signal.raise_signal(self.number)


class Forgetful(nn.Sequential):
    """Draws random numbers at each step."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fednh"],
        ["algorithm=fedsc", "optimizer=adam"],
        ["algorithm=scaffold", "local.grad_clip=0.5"],
        ["algorithm=fedrep"],
        ["algorithm=ditto"],
        ["algorithm=fedbabu"],
        ["algorithm=fedgen", "loss.steps=5"],
        ["sampler=hics", "head=etf"],
        ["engine.precision=bf16-mixed", "local.grad_clip=1"],
        ["model=custom", f"model._target_={__name__}.Forgetful"],
    ],
    ids=" ".join,
)
def test_the_same_bits_as_serial(overrides: list[str]) -> None:
    one = federate(*SMALL, *overrides)
    other = federate(*SMALL, *overrides, "engine=trainer")
    for round in (1, 2):
        left, right = one.run_round(round).metrics, other.run_round(round).metrics
        assert left.keys() == right.keys()
        assert all(right[n] == v for n, v in left.items() if not n.startswith("time/"))
    for name, weight in one.server.weights.items():
        assert torch.equal(other.server.weights[name], weight)


def test_callbacks_and_options_reach_the_trainer() -> None:
    Counting.fits = 0
    federation = federate(
        *SMALL,
        "engine=trainer",
        f"engine.callbacks=[{{_target_:{__name__}.Counting}}]",
        "+engine.options.log_every_n_steps=7",
    )
    message = federation.server.broadcast(1)
    list(federation.engine.train([0, 1, 2], message))
    assert (Counting.fits, Counting.option) == (3, 7)


def test_the_tasks_of_a_slurm_job_are_no_concern_of_a_single_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_JOB_NAME", "x")
    federation = federate(*SMALL, "engine=trainer")
    assert list(federation.engine.train([0], federation.server.broadcast(1)))


def signalled(number: int) -> list[str]:
    callback = f"{{_target_:{__name__}.Signalling,number:{int(number)}}}"
    return [*SMALL, "partition=iid", "engine=trainer", f"engine.callbacks=[{callback}]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_held_back_does_not_end_the_fit(number: signal.Signals) -> None:
    federation = federate(*signalled(number))
    with Interrupts(announce=False) as interrupts:
        (update,) = federation.engine.train([0], federation.server.broadcast(1))
        assert (update.steps, interrupts.received) == (6, number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_not_held_back_ends_the_fit_as_with_other_engines() -> None:
    federation = federate(*signalled(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(federation.engine.train([0], federation.server.broadcast(1)))
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("shortening", "taken"),
    [
        ("+engine.options.limit_train_batches=1", 2),
        (f"engine.callbacks=[{{_target_:{__name__}.Stopping}}]", 3),
    ],
)
def test_a_shortened_training_is_refused(shortening: str, taken: int) -> None:
    """Its update would have the samples, and its last epoch the beginning, of whole epochs."""
    federation = federate(*SMALL, "partition=iid", "engine=trainer", shortening)
    with pytest.raises(InputError, match=rf"took {taken} of 6 steps; .*limit_train_batches"):
        list(federation.engine.train([0], federation.server.broadcast(1)))


@pytest.mark.parametrize("key", ACCUMULATING)
def test_whole_epochs_of_accumulated_gradients(key: str) -> None:
    accumulating = [*SMALL, "engine=trainer", ACCUMULATING[key]]
    federation = federate(*accumulating)
    (update,) = federation.engine.train([0], federation.server.broadcast(1))
    assert update.samples == 2 * update.num_samples
    for part in ("local.steps=3", "local.epochs=0.5"):
        federation = federate(*accumulating, part)
        with pytest.raises(InputError, match=f"^{key}: needs"):
            list(federation.engine.train([0], federation.server.broadcast(1)))


@pytest.mark.parametrize("method", ["fedavg", "feddyn"])
def test_the_last_step_of_an_epoch_is_as_long_as_the_others(method: str) -> None:
    """Each client has three batches, so all of them make the only step of an epoch."""
    iid = [*SMALL, "partition=iid", "engine=trainer", f"algorithm={method}", "local.grad_clip=0.5"]
    three, four = (federate(*iid, f"+engine.options.accumulate_grad_batches={n}") for n in (3, 4))
    for federation in (three, four):
        federation.run_round(1)
    for name, weight in three.server.weights.items():
        torch.testing.assert_close(four.server.weights[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("key", ACCUMULATING)
def test_gradient_rules_cannot_be_accumulated(key: str) -> None:
    with pytest.raises(InputError, match=f"^{key}: .*use gradient=plain"):
        federate(*SMALL, "engine=trainer", ACCUMULATING[key], "gradient=sam")


@pytest.mark.parametrize("key", ACCUMULATING)
def test_parts_that_divide_by_steps_refuse_accumulated_gradients(key: str) -> None:
    """Two batches are one step of the optimizer, but two in the number that parts see."""
    accumulating = [*SMALL, "engine=trainer", ACCUMULATING[key]]
    for socket, option in (("aggregator", "normalized"), ("regularizer", "control_variates")):
        with pytest.raises(InputError, match=f"^{key}: this {socket} divides"):
            federate(*accumulating, f"{socket}={option}")
    federate(*accumulating, "regularizer=control_variates", "regularizer.estimate=gradient")


def test_the_module_returns_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each fit, a Trainer moves the module to the CPU; on a GPU it would stay there."""
    federation = federate(*SMALL, "engine=trainer")
    moves: list[object] = []
    monkeypatch.setattr(type(federation.module), "cpu", lambda module: moves.append("cpu"))
    monkeypatch.setattr(type(federation.module), "to", lambda module, *place: moves.extend(place))
    list(federation.engine.train([0], federation.server.broadcast(1)))
    assert moves[-2:] == ["cpu", federation.engine.resources.fabric.device]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("+engine.options.devices=2", r"engine\.options\.devices: fedexp sets"),
        ("+engine.options.max_steps=2", r"engine\.options\.max_steps: fedexp sets"),
        ("+engine.options.nonsense=2", r"engine\.options: .*nonsense"),
        ("+engine.options.strategy=nope", r"engine\.options: .*invalid strategy name"),
        ("+engine.options.gradient_clip_algorithm=nope", r"engine\.options: .*is invalid"),
        (
            "engine.callbacks=[{_target_:no.such.Callback}]",
            r"engine\.callbacks\.0\._target_=no\.such.*cannot be imported",
        ),
        (
            "engine.callbacks=[{_target_:builtins.dict}]",
            r"engine\.callbacks\._target_=builtins\.dict: should be a subclass of lightning",
        ),
    ],
)
def test_invalid_callbacks_and_options(override: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        federate(*SMALL, "engine=trainer", override)
