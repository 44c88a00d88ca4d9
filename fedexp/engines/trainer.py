"""Trains each client with a stock ``lightning.Trainer``: slower, with all of its features."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from lightning import Callback, LightningModule
from lightning import Trainer as LightningTrainer
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from fedexp.config.build import locate
from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.core.sockets import Phase
from fedexp.engines.base import fit_metrics
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.engines.resources import Resources
from fedexp.engines.serial import Serial
from fedexp.errors import InputError


class Trainer(Serial):
    """Trains clients one after another; each phase of local training is one ``Trainer.fit``.

    The weights are those of ``serial`` to the bit on a CPU.

    Args:
        resources: what it works with.
        callbacks: Lightning callbacks, each a mapping with a ``_target_``; the same objects are
            used for every client.
        options: further arguments of ``lightning.Trainer``, except those that fedexp sets.

    Raises:
        InputError: a callback or an option is invalid.
    """

    shares_cohort = False  # a Trainer would join the process group itself
    captures_steps = False

    def __init__(
        self,
        resources: Resources,
        callbacks: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(resources)
        self._recorder = _Recorder()
        self._optimizer_keeper = _OptimizerKeeper()
        self._callbacks = [self._recorder, self._optimizer_keeper, *map(_callback, callbacks)]
        self._options = dict(options)
        self._trainer(Phase(epochs=1))  # finds a wrong option before training

    def on_trial(self, resources: Resources) -> Serial:
        """The same training without a Trainer, whose callbacks would see the trial."""
        return Serial(resources)

    def fit(
        self, module: ClientModule, phases: Sequence[Phase], kept: Memory | None = None
    ) -> Tensors:
        """As ``Engine.fit``, one ``Trainer.fit`` for each phase."""
        local = self.resources.local
        batches: Any = module.data.local_batches(module.round, local.batch_size)
        self._recorder.losses.clear()
        self._optimizer_keeper.kept = kept
        # A loader draws a seed, by default from the generator that dropout uses.
        loader = DataLoader(batches, batch_size=None, generator=Generator())
        for phase in phases:
            module.begin_phase(phase)
            self._recorder.is_last_phase = phase is phases[-1]
            with _without_messages():
                self._trainer(phase).fit(module, loader)
        return fit_metrics(self._recorder.losses, module)

    def _trainer(self, phase: Phase) -> LightningTrainer:
        fabric, local = self.resources.fabric, self.resources.local
        ours: dict[str, Any] = {
            "accelerator": fabric.device.type,
            "devices": 1,
            "precision": fabric._precision.precision,
            "max_epochs": phase.epochs,
            "gradient_clip_val": local.grad_clip if phase.clipped else None,
            "callbacks": list(self._callbacks),
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        for name in self._options:
            if name in ours:
                raise InputError(f"engine.options.{name}: is set by fedexp; leave it out")
        try:
            with _without_messages():
                return LightningTrainer(**ours, **self._options)
        except TypeError as error:
            raise InputError(f"engine.options: {error}") from error


class _Recorder(Callback):
    """Records losses and cross-entropies on the device.

    Attributes:
        losses: the loss of every step.
        is_last_phase: whether the cross-entropies of the last epoch are recorded, in the module.
    """

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.is_last_phase = False

    def on_train_epoch_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Start recording cross-entropies in the last epoch."""
        if self.is_last_phase and trainer.current_epoch + 1 == trainer.max_epochs:
            cast(ClientModule, pl_module).cross_entropies = []

    def on_train_batch_end(
        self,
        trainer: LightningTrainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Record the loss."""
        self.losses.append(outputs["loss"].detach())


class _OptimizerKeeper(Callback):
    """Restores the kept state of the optimizer before a fit, and keeps it after.

    Attributes:
        kept: the client's optimizer state; None keeps none.
    """

    kept: Memory | None = None

    def on_train_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Restore the state."""
        if self.kept is not None:
            trained = dict(cast(ClientModule, pl_module).trained_parameters())
            restore_optimizer(trainer.optimizers[0], [(trained, self.kept)])

    def on_train_end(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        """Keep the state."""
        if self.kept is not None:
            trained = dict(cast(ClientModule, pl_module).trained_parameters())
            self.kept.update(optimizer_state(trainer.optimizers[0], trained))


def _callback(config: Mapping[str, Any]) -> Callback:
    arguments = dict(config)
    try:
        found = locate("engine.callbacks", arguments.pop("_target_", None))(**arguments)
    except Exception as error:
        raise InputError(f"engine.callbacks: {error}".partition("\n")[0]) from error
    if not isinstance(found, Callback):
        raise InputError(f"engine.callbacks: {found!r} is no lightning.Callback")
    return found


@contextmanager
def _without_messages() -> Iterator[None]:
    """Suppress the messages that every Trainer logs: devices, tips, advice about workers."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logger.setLevel(level)
