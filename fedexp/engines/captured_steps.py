"""One way to train the resident module, as steps that are captured once and then repeated."""

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.forward import cross_entropy
from fedexp.core.messages import Tensors
from fedexp.engines.steps import EagerSteps

LOGGER = logging.getLogger(__name__)

Work = Callable[[], None]
"""Operations on tensors that stay where they are in memory."""

_LARGEST_DIFFERENCE = 0.01
"""Of a captured step from the same step without capture, as a share of its length."""


class CapturedSteps:
    """The steps of one way to train: that of a full batch, and that of a shorter one.

    Each is captured at the first batch of its kind, compared once with the same step without
    capture, and not used if they differ.

    Args:
        eager: the same steps without capture. Its optimizer is used for all clients; a client's
            turn begins with zero as its state, which is how a fresh one begins.
        batch_size: of a full batch.
        capture: as ``in_cuda_graph``.

    Attributes:
        failure: why steps cannot be captured; empty if they can, or have not been yet.
    """

    def __init__(self, eager: EagerSteps, batch_size: int, capture: Callable[[Work], Work]):
        self._eager, self._batch_size, self._capture = eager, batch_size, capture
        self._module = eager.module
        self._pads = not _mixes_samples(eager.module)
        self._captured: dict[bool, tuple[_Static, Work]] = {}  # whether padded -> step
        self._rate: Tensor | None = None
        self.failure = ""

    def begin_turn(self, lr: float) -> None:
        """Begin a client's phase with this learning rate."""
        for value in self._optimizer_state():
            value.zero_()
        (group,) = self._eager.optimizer.param_groups
        if "capturable" in group:
            group["capturable"] = self._module.device.type == "cuda"
        if not getattr(self._module.optimizer, "is_constant", False):
            # A number would be captured; float32 rounds it.
            if self._rate is None:
                self._rate = torch.zeros((), device=self._module.device)
            self._rate.fill_(lr)
            group["lr"] = self._rate

    def __call__(self, batch: Batch, number: int) -> Tensor:
        """Take one step."""
        is_short = len(batch[1]) < self._batch_size
        if self.failure or (is_short and not self._pads):
            return self._eager(batch, number)
        if is_short not in self._captured:
            self._prepare(batch, is_short)
            if self.failure:
                return self._eager(batch, number)
        static, replay = self._captured[is_short]
        static.load(batch)
        replay()
        return self._recorded(static)

    def _recorded(self, static: "_Static") -> Tensor:
        """Record the step as ``ClientModule.training_step`` does; returns its loss."""
        module = self._module
        module.steps += 1
        in_last_epoch = module.cross_entropies is not None
        due = (n for n in static.measured if in_last_epoch or not _waits(module, n))
        module.accumulate(
            {name: {n: v.clone() for n, v in static.measured[name].items()} for name in due}
        )
        if module.cross_entropies is not None:
            module.cross_entropies.append(static.cross_entropy.clone())
        return static.loss.clone()

    def _prepare(self, batch: Batch, is_short: bool) -> None:
        """Capture the step for this kind of batch; the client's model and state do not change."""
        static = _Static(self._eager, batch, self._batch_size, is_short)
        tensors = [value for _, value in self._module.tensor_index.everything()]
        if not self._captured:  # the optimizer makes its state in its first step
            begun = _Snapshot(tensors)
            static.load(batch)
            static.take()
            begun.restore()
            for value in self._optimizer_state():
                value.zero_()
        begun = _Snapshot([*tensors, *self._optimizer_state()])
        start = self._trained()
        static.load(batch)
        static.take()
        expected = self._trained()
        begun.restore()
        try:
            replay = self._capture(static.take)
        except RuntimeError as error:
            self.failure = str(error).partition("\n")[0] or type(error).__name__
        else:
            begun.restore()
            replay()
            difference = _distance(self._trained(), expected)
            if difference > _LARGEST_DIFFERENCE * _distance(start, expected):
                self.failure = "a captured step differs from one without capture"
            self._captured[is_short] = static, replay
        begun.restore()
        if self.failure:
            LOGGER.warning("engine.graph: steps are not captured (%s)", self.failure)

    def _trained(self) -> list[Tensor]:
        """Copies of the parameters that are trained."""
        return [value.detach().clone() for _, value in self._module.trained_parameters()]

    def _optimizer_state(self) -> list[Tensor]:
        states = self._eager.optimizer.state.values()
        return [v for state in states for v in state.values() if isinstance(v, Tensor)]


class _Static:
    """One step on tensors that stay where they are.

    Attributes:
        loss: of the last step, as are the next two.
        cross_entropy: mean over the samples.
        measured: socket -> what its part measures in any epoch.
    """

    loss: Tensor
    cross_entropy: Tensor
    measured: dict[str, Tensors]

    def __init__(self, eager: EagerSteps, like: Batch, batch_size: int, is_short: bool) -> None:
        self._eager = eager
        self._inputs, self._targets = (
            each.new_zeros(batch_size, *each.shape[1:]).to(memory_format=_format(each))
            for each in like
        )
        device = self._targets.device
        self._real = torch.ones(batch_size, device=device) if is_short else None
        self._number = torch.zeros((), dtype=torch.int64, device=device)

    def load(self, batch: Batch) -> None:
        """Copy the batch in, with copies of its first sample as padding."""
        size = len(batch[1])
        for place, values in zip((self._inputs, self._targets), batch, strict=True):
            place[:size] = values
            if self._real is not None:
                place[size:] = values[:1]
        if self._real is not None:
            self._real[:size].fill_(1)
            self._real[size:].fill_(0)
        self._number.fill_(self._eager.module.steps)

    def take(self) -> None:
        """Take the step, as ``EagerSteps`` does, but record nothing in the module."""
        module = self._eager.module
        with self._eager.fabric.autocast():
            batch = self._inputs, self._targets
            loss, forward = module.objective(batch, self._real, self._number)
            self.measured = module.measure(forward, in_last_epoch=True)
            self.cross_entropy = cross_entropy(forward.logits, forward.targets, forward.real)
        self.loss = loss.detach()
        self._eager.descend(loss)


class _Snapshot:
    """Copies of tensors, and the random state of their device."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._copies = [(each, each.detach().clone()) for each in tensors]
        self._cuda = bool(tensors) and tensors[0].is_cuda
        self._random = torch.cuda.get_rng_state() if self._cuda else torch.get_rng_state()

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, copy in self._copies:
            tensor.copy_(copy)
        if self._cuda:
            torch.cuda.set_rng_state(self._random)
        else:
            torch.set_rng_state(self._random)


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Euclidean, over all tensors as one vector."""
    squares = [(a - b).square().sum() for a, b in zip(one, other, strict=True)]
    return float(torch.stack(squares).sum().sqrt())


def _mixes_samples(module: ClientModule) -> bool:
    """Whether a layer's result for a sample depends on the others of its batch."""
    layers = (each for each in module.modules() if isinstance(each, _BatchNorm))
    return any(not module.has_fixed_buffers(layer) for layer in layers)


def _waits(module: ClientModule, socket: str) -> bool:
    return module.parts[socket].measures_last_epoch


def _format(tensor: Tensor) -> torch.memory_format:
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format
