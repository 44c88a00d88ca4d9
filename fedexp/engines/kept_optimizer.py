"""What ``local.keep_optimizer`` keeps: each client's optimizer state, from round to round."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedexp.core.part import Memory
from fedexp.errors import InputError

SHARED_MODEL, PERSONAL_MODEL = "optimizer", "personal_optimizer"
"""Names of the memories in a ``ClientState`` that hold the state of either model's optimizer."""


def restore_optimizer(
    optimizer: Optimizer, kept: Iterable[tuple[Mapping[str, nn.Parameter], Memory]]
) -> None:
    """Give a fresh optimizer the state that clients kept.

    Args:
        optimizer: one that has taken no step.
        kept: for each client, its parameters in the optimizer by name, and what
            ``optimizer_state`` returned of them; empty if it has kept nothing yet.
    """
    group = optimizer.param_groups[0]
    steps_on_device = bool(group.get("fused") or group.get("capturable"))
    for parameters, memory in kept:
        for key, value in memory.items():
            name, _, entry = key.rpartition("/")
            if name in parameters:
                restored = _copy(entry, value, parameters[name], steps_on_device)
                optimizer.state[parameters[name]][entry] = restored
    # Fused SGD takes the first step of all parameters of a group, or of none.
    new = [each for each in group["params"] if each not in optimizer.state]
    if 0 < len(new) < len(group["params"]):
        group["params"] = [each for each in group["params"] if each in optimizer.state]
        optimizer.add_param_group({**group, "params": new})


def _copy(entry: str, value: Tensor, parameter: nn.Parameter, steps_on_device: bool) -> Tensor:
    """A copy of ``value`` where and as the optimizer needs it."""
    if value.shape == parameter.shape:  # fused optimizers rely on equal strides
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    # Step counts are on the CPU but for fused optimizers; a checkpoint may have moved them.
    on_cpu = entry == "step" and not steps_on_device
    return value.to("cpu" if on_cpu else parameter.device, copy=True)


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Memory:
    """The optimizer's state of ``parameters``, for ``restore_optimizer``.

    Raises:
        InputError: it holds something that is not a tensor.
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
