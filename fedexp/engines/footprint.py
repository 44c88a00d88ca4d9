"""How many clients fit into memory at once."""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Message, count_bytes
from fedexp.engines.resources import Resources

_CPU_BYTES = 2**30
"""Largest size of a stack in RAM; larger stacks were no faster."""

_CUDA_SHARE = 0.6
"""Share of a GPU's memory for a stack; backward passes need the rest for temporary tensors."""

_COPIES = 4
"""Copies of each parameter: the value, its gradient and two moments of the optimizer."""


def clients_that_fit(resources: Resources, client: int, message: Message) -> int:
    """Number of clients that fit into memory, at least 1.

    It is measured with a batch of ``client`` whose samples are repeated up to the size of the
    largest batch of all clients. So the number does not depend on the client, and a resumed run
    finds the same number.
    """
    module = resources.load_global(message)
    data, last = resources.data.clients[client], resources.last_batch
    module.begin_turn(data, message)
    inputs, targets = next(iter(resources.local_batches(data, message.round)))
    longest = last.longest(int(resources.data.sizes.max()), resources.local.batch_size)
    rows = torch.arange(longest, device=targets.device)
    batch = inputs[rows % len(targets)], targets[rows % len(targets)]
    # All clients share the fixed tensors, which therefore do not count.
    state = count_bytes(dict(module.tensor_index.everything()))
    per_client = _COPIES * state + _saved_bytes(module, batch)
    return max(1, int(stack_bytes(module.device, _CPU_BYTES, _CUDA_SHARE) // per_client))


def _saved_bytes(module: ClientModule, batch: Batch) -> int:
    """Bytes that one forward pass saves for the backward pass, without fixed weights."""
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
    """Largest size of a stack in bytes: ``on_cpu`` on a CPU, ``share`` of a GPU's free memory.

    With ``engine.deterministic`` the size is ``share`` of the GPU's total memory, because dropout
    masks depend on the size of the stack, and free memory depends on other programs.
    """
    if device.type in ("cpu", "meta"):
        return on_cpu
    free, total = torch.get_device_module(device).mem_get_info(device)
    return share * float(total if torch.are_deterministic_algorithms_enabled() else free)
