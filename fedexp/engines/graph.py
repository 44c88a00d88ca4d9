"""Training steps captured in CUDA graphs, so that a step is one launch instead of hundreds.

A small model's step takes longer to launch than to compute. A captured step repeats the same
operations on the same memory, for every client and round: batches are copied into its inputs,
weights into the resident module. This is possible because the objective is a pure function of
parameters, buffers and batch.

Batches of full size have the same weights as without capture. Shorter ones are padded, and
``Forward.real`` leaves the padding out, which changes their rounding; with layers that mix the
samples of a batch (BatchNorm) they are not captured. Layers with random numbers, such as dropout,
may draw others.

Not run on a GPU yet: tests on a CPU record a step's operations and repeat them.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedexp.config.schema import Engine as EngineConfig
from fedexp.core.sockets import Phase
from fedexp.engines.captured_steps import CapturedSteps, Work
from fedexp.engines.resources import Resources
from fedexp.engines.steps import EagerSteps, Steps
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

_WARM_UPS = 3


def in_cuda_graph(work: Work) -> Work:
    """Capture ``work``; the result repeats its operations. Executes it several times."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what libraries allocate at their first calls is not captured
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def uses_graphs(config: EngineConfig, captures_steps: bool, device: torch.device) -> bool:
    """Whether ``engine.graph`` asks for captured steps.

    Args:
        config: of the engine.
        captures_steps: whether this engine can.
        device: of the run.

    Raises:
        InputError: it asks for them where there are none.
    """
    possible = captures_steps and device.type == "cuda" and not config.compile
    if config.graph is True and not possible:
        raise InputError(
            "engine.graph=on: needs engine=serial, a GPU with CUDA and engine.compile=false; "
            f"this run is on {device.type}; should be auto or off"
        )
    return bool(config.graph) and possible


class Graphs:
    """The captured steps of the resident module: one set for each way to train it.

    Args:
        resources: what the engine works with.
        capture: as ``in_cuda_graph``.
    """

    def __init__(self, resources: Resources, capture: Callable[[Work], Work] = in_cuda_graph):
        self._resources, self._capture = resources, capture
        self._buffers: dict[Any, Tensor] = {}  # by name, shape and type: what graphs read
        self._captured: dict[Any, CapturedSteps] = {}
        self._logged: set[str] = set()

    def steps(self, phase: Phase, optimizer: Optimizer, grad_clip: float | None) -> Steps:
        """The steps of the client in the resident module, which has begun this phase.

        ``optimizer`` is a fresh one; only its settings are used if steps are captured.
        """
        resources, module = self._resources, self._resources.module
        eager = EagerSteps(resources.fabric, module, optimizer, grad_clip)
        obstacle = _obstacle(optimizer)
        if resources.local.keep_optimizer:
            obstacle = "local.keep_optimizer=true"
        if obstacle:
            return self._not_captured(obstacle, eager)
        shapes = self._seat_buffers()
        key: tuple[Any, ...] = (phase.trainable, phase.eval_mode, phase.plain_sgd, grad_clip)
        key = (*key, module.is_personal, shapes)
        if key not in self._captured:
            size = resources.local.batch_size
            self._captured[key] = CapturedSteps(eager, size, self._capture)
        found = self._captured[key]
        if found.failure:
            return eager
        found.begin_turn(optimizer.param_groups[0]["lr"])
        return found

    def _not_captured(self, reason: str, eager: EagerSteps) -> Steps:
        if reason not in self._logged:
            LOGGER.info("engine.graph: steps are not captured (%s)", reason)
            self._logged.add(reason)
        return eager

    @torch.no_grad()
    def _seat_buffers(self) -> tuple[Any, ...]:
        """Move the module's buffers to where captured steps read them; returns names and shapes.

        Parts may have replaced a buffer by another tensor, which others may use as well.
        """
        shapes = []
        index = self._resources.module.tensor_index
        for name, value in index.buffers():
            key = (name, value.shape, value.dtype)
            shapes.append(key)
            if key not in self._buffers:
                self._buffers[key] = value.clone()
            if value is not self._buffers[key]:
                self._buffers[key].copy_(value)
                index.set_buffer(name, self._buffers[key])
        return tuple(shapes)


def _obstacle(optimizer: Optimizer) -> str:
    """Why steps of this optimizer cannot be captured; empty if they can.

    A fresh optimizer must be one whose state is zero, and its step one kernel on the device.
    """
    (group,) = optimizer.param_groups
    known = isinstance(optimizer, torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW)
    if not known or not group.get("fused"):
        return f"{type(optimizer).__name__} without a fused kernel"
    if group.get("dampening"):
        return "optimizer.dampening"
    return ""
