"""Trains each client with ``lightning.Trainer``: slower, but with all features of a Trainer."""

import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

from lightning import Callback, LightningModule
from lightning import Trainer as LightningTrainer
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Generator
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fedexp.config.build import locate_kind
from fedexp.config.compatibility.traits import DIVIDES_STEPS, SEVERAL_PROCESSES
from fedexp.config.constructed import construct
from fedexp.core.client import ClientModule
from fedexp.core.log_levels import errors_only
from fedexp.core.part import Memory
from fedexp.core.sockets import Phase
from fedexp.data.batches import LocalBatches
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.engines.resources import Resources
from fedexp.engines.serial import Serial
from fedexp.errors import InputError


class Trainer(Serial):
    """Trains clients one after another; each phase of local training is one ``Trainer.fit``.

    On a CPU the weights are the same as with ``engine=serial``, to the bit. With the option
    ``accumulate_grad_batches`` or the callback ``GradientAccumulationScheduler`` several batches
    make one step of the optimizer along the mean of their gradients; fewer may be left for the last
    step of an epoch. The number of steps that parts see still counts batches, and only whole epochs
    can be trained. So parts that divide by this number are refused. ``gradient`` must be ``plain``,
    because the other rules compute the gradient of a single batch. An option or a callback that
    shortens the training is refused: an update has the samples of all steps.

    Args:
        resources: the objects that every engine works with.
        callbacks: Lightning callbacks, each a mapping with a ``_target_``; the same objects are
            used for every client.
        options: further arguments of ``lightning.Trainer``, except those that fedexp sets.

    Raises:
        InputError: a callback or an option is invalid.
    """

    forbids = MappingProxyType(  # a Trainer would join the process group itself
        {
            SEVERAL_PROCESSES: "{other}: engine=trainer trains in one process; take engine=serial "
            "or engine=vectorized"
        }
    )

    def __init__(
        self,
        resources: Resources,
        callbacks: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(resources)
        self._optimizer_state = _KeptOptimizer()
        self._callbacks = [self._optimizer_state, _MeanGradient(), *map(_callback, callbacks)]
        self._options = dict(options)
        # Raises for a wrong option before training.
        trainer = self._trainer(Phase(epochs=1), steps=1, epochs=1)
        self._accumulating = _accumulating(trainer, self._callbacks)
        if self._accumulating:
            _check_accumulation(self._accumulating, resources)

    def _fit_phase(
        self, phase: Phase, batches: LocalBatches, steps: int, kept: Memory | None
    ) -> None:
        """Train the phase with one ``Trainer.fit``."""
        self._optimizer_state.kept = kept
        turn = self.resources.module.turn
        before = turn.steps
        # The loader draws a seed; its own generator leaves the random state of dropout unchanged.
        loader = DataLoader(cast(Any, batches), batch_size=None, generator=Generator())
        with _without_messages():
            trainer = self._trainer(phase, steps, epochs=-(-steps // len(batches)))
            if self._accumulating and steps % len(batches):
                raise InputError(
                    f"{self._accumulating}: needs whole epochs, because a Trainer counts only the "
                    f"optimizer's steps; {steps} steps with {len(batches)} batches in an "
                    "epoch are none"
                )
            with _signals_as_elsewhere(trainer):
                trainer.fit(self.resources.module, loader)
        if (taken := turn.steps - before) != steps:
            raise InputError(
                f"engine.options or engine.callbacks: the Trainer took {taken} of {steps} steps; "
                "leave out what ends an epoch or the training early, such as limit_train_batches"
            )
        self.resources.module.to(self.resources.fabric.device)  # a Trainer leaves it on the CPU

    def _trainer(self, phase: Phase, steps: int, epochs: int) -> LightningTrainer:
        fabric, local = self.resources.fabric, self.resources.local
        ours: dict[str, Any] = {
            "devices": 1,
            **_on_device(fabric),
            "max_epochs": epochs,
            "max_steps": steps,
            "gradient_clip_val": local.grad_clip if phase.clipped else None,
            "callbacks": list(self._callbacks),
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        for name in self._options:
            if name in ours:
                raise InputError(f"engine.options.{name}: fedexp sets this option; remove it")
        try:
            with _without_messages():
                return LightningTrainer(**ours, **self._options)
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise InputError(f"engine.options: {error}".partition("\n")[0]) from error


class _KeptOptimizer(Callback):
    """Keeps a client's optimizer state from one fit to the next.

    Attributes:
        kept: the optimizer state, which is restored before a fit and replaced after it. If None,
            the callback does nothing.
    """

    kept: Memory | None = None

    def on_train_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Restore the optimizer's state."""
        if self.kept is not None:
            trained = dict(cast(ClientModule, pl_module).trained_parameters())
            restore_optimizer(trainer.optimizers[0], [(trained, self.kept)])

    def on_train_end(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Store the optimizer's state."""
        if self.kept is not None:
            trained = dict(cast(ClientModule, pl_module).trained_parameters())
            self.kept.update(optimizer_state(trainer.optimizers[0], trained))


class _MeanGradient(Callback):
    """Lets a step of several batches follow the mean of their gradients.

    With ``accumulate_grad_batches`` N Lightning divides the loss of each batch by N, even if only
    r < N batches are left for the last step of an epoch. This step would be r / N as long.
    """

    def on_before_optimizer_step(
        self, trainer: LightningTrainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Multiply the gradient of r < N batches by N / r, before it is clipped."""
        planned = trainer.accumulate_grad_batches
        batches = trainer.fit_loop.epoch_loop.batch_idx % planned + 1
        if batches < planned:
            for _, parameter in cast(ClientModule, pl_module).trained_parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(planned / batches)


def _accumulating(trainer: LightningTrainer, callbacks: Sequence[Callback]) -> str:
    """What lets several batches make one step of the optimizer, as an error names it; or empty."""
    if trainer.accumulate_grad_batches > 1:
        return f"engine.options.accumulate_grad_batches={trainer.accumulate_grad_batches}"
    for each in callbacks:
        if (
            isinstance(each, GradientAccumulationScheduler)
            and each.going_to_accumulate_grad_batches()
        ):
            return f"engine.callbacks: {type(each).__name__}"
    return ""


def _check_accumulation(key: str, resources: Resources) -> None:
    """Raise InputError, which begins with ``key``, if a part counts on a step for each batch."""
    if not resources.module.gradient.is_plain:
        raise InputError(
            f"{key}: the rule in gradient computes the gradient of a single batch; use "
            "gradient=plain, or leave the option out"
        )
    for socket, part in resources.parts.items():
        if DIVIDES_STEPS in part.traits:
            raise InputError(
                f"{key}: this {socket} {DIVIDES_STEPS}, and each batch counts as a step; use "
                f"another {socket}, or leave the option out"
            )


def _on_device(fabric: Fabric) -> dict[str, Any]:
    """The arguments of ``lightning.Trainer`` for Fabric's device and precision."""
    kind, is_mixed = fabric.device.type, fabric._precision.precision == "bf16-mixed"
    precision = [_BFloat16("bf16-mixed", kind)] if is_mixed else []
    # Lightning would otherwise join a SLURM job, and refuse one that has several tasks.
    found: dict[str, Any] = {"plugins": [LightningEnvironment(), *precision]}
    if kind in ("cpu", "cuda"):
        return found | {"accelerator": kind}
    # Lightning itself would compute on the CPU.
    return found | {
        "accelerator": fabric._connector.accelerator,
        "strategy": SingleDeviceStrategy(fabric.device),
    }


class _BFloat16(MixedPrecision):
    """Mixed precision that clips the gradients of every optimizer.

    Lightning refuses fused optimizers, because some of them unscale gradients of float16
    themselves. In bfloat16 no gradient is scaled.
    """

    def clip_gradients(self, *arguments: Any, **options: Any) -> None:
        """Clip as without mixed precision."""
        Precision.clip_gradients(self, *arguments, **options)


def _callback(config: Mapping[str, Any]) -> Callback:
    arguments = dict(config)
    target = locate_kind("engine.callbacks._target_", arguments.pop("_target_", None), Callback)
    callback: Callback = construct("engine.callbacks", target, Callback, arguments)
    return callback


@contextmanager
def _without_messages() -> Iterator[None]:
    """Suppress the messages that every Trainer logs: devices, tips, advice about workers."""
    with errors_only("lightning.pytorch"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@contextmanager
def _signals_as_elsewhere(trainer: LightningTrainer) -> Iterator[None]:
    """While ``trainer`` fits, let signals act as with the other engines."""
    # Lightning's own handler would end the process at SIGTERM, and lose the round.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        # Lightning ignores Ctrl-C from the first one on, and exits as after an error.
        if not isinstance(ended.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, before)
        raise ended.__context__ from None
