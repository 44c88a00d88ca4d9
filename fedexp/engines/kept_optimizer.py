"""Each client's optimizer state from round to round, for ``local.keep_optimizer``."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedexp.core.part import Memory
from fedexp.errors import InputError

SHARED_MODEL, PERSONAL_MODEL = "optimizer", "personal_optimizer"
"""Names of the memories in a ``ClientState`` with the optimizer state of each model."""


def restore_optimizer(
    optimizer: Optimizer, kept: Iterable[tuple[Mapping[str, nn.Parameter], Memory]]
) -> None:
    """Restore the clients' kept state in a fresh optimizer.

    Args:
        optimizer: an optimizer that has taken no step yet.
        kept: for each client (its parameters by name, the state that ``optimizer_state`` returned
            for these parameters). The state is empty if no state was kept yet.
    """
    group = optimizer.param_groups[0]
    steps_on_device = bool(group.get("fused") or group.get("capturable"))
    for parameters, memory in kept:
        for key, value in memory.items():
            name, _, entry = key.rpartition("/")
            if name in parameters:
                restored = _copy(entry, value, parameters[name], steps_on_device)
                optimizer.state[parameters[name]][entry] = restored
    # Fused SGD cannot mix parameters with and without state in one group.
    new = [each for each in group["params"] if each not in optimizer.state]
    if 0 < len(new) < len(group["params"]):
        group["params"] = [each for each in group["params"] if each in optimizer.state]
        optimizer.add_param_group({**group, "params": new})


def _copy(entry: str, value: Tensor, parameter: nn.Parameter, steps_on_device: bool) -> Tensor:
    """A copy of ``value`` with the device and memory layout that the optimizer needs."""
    if value.shape == parameter.shape:  # fused optimizers rely on equal strides
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    # Only fused optimizers keep step counts on the GPU; a checkpoint may have moved the counts.
    on_cpu = entry == "step" and not steps_on_device
    return value.to("cpu" if on_cpu else parameter.device, copy=True)


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Memory:
    """The optimizer's state for ``parameters``, in the form that ``restore_optimizer`` takes.

    Raises:
        InputError: a value of the state is not a tensor.
    """
    memory: Memory = {}
    for name, parameter in parameters.items():
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                memory[f"{name}/{entry}"] = value.detach()
            elif value is not None:
                raise InputError(
                    f"local.keep_optimizer=true: {type(optimizer).__name__} keeps {entry}={value}, "
                    "which is not a tensor; use false or another optimizer"
                )
    return memory
