"""How many clients fit into memory at once."""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Message
from fedexp.engines.resources import Resources

_CPU_BYTES = 2**30
"""For a stack in RAM: larger ones were no faster, as they exceed the caches."""

_CUDA_SHARE = 0.6
"""Share of a GPU's memory for a stack; the rest is for temporary tensors of backward passes."""

_COPIES = 4
"""Copies of parameters and buffers: the values, gradients, two moments of an optimizer."""


def clients_that_fit(resources: Resources, client: int, message: Message) -> int:
    """Clients that can be trained at once, at least one, measured on a batch of ``client``."""
    module = resources.load_global(message)
    module.begin_turn(resources.data.clients[client], message.round)
    batch = next(iter(module.data.local_batches(message.round, resources.local.batch_size)))
    # What is fixed is in memory once for all clients.
    state = sum(each.numel() * each.element_size() for _, each in module.tensor_index.everything())
    each = _COPIES * state + _saved_bytes(module, batch)
    return max(1, int(stack_bytes(module.device, _CPU_BYTES, _CUDA_SHARE) // each))


def _saved_bytes(module: ClientModule, batch: Batch) -> int:
    """Bytes that the forward pass of one step saves for the backward pass, no fixed weights."""
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    module.train()
    module.train_only(("",))
    with saved_tensors_hooks(record, lambda tensor: tensor):
        module.objective(batch)
    fixed = {each.untyped_storage().data_ptr() for _, each in module.tensor_index.fixed()}
    return sum(size for place, size in sizes.items() if place not in fixed)


def stack_bytes(device: torch.device, on_cpu: int, share: float) -> float:
    """Bytes that a stack may have: ``on_cpu``, or a share of the GPU's free memory.

    With ``engine.deterministic`` it is a share of all its memory: how many clients are stacked
    decides the masks of their dropout, and what is free depends on other programs.
    """
    if device.type != "cuda":
        return on_cpu
    free, total = torch.cuda.mem_get_info(device)
    return share * (total if torch.are_deterministic_algorithms_enabled() else free)
