"""The local optimizers of the clients of a stack."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.engines.stack import Stack, dense, memory_order


class StackedOptimizer:
    """One optimizer over the stacked parameters of the clients that still train.

    Args:
        stack: the clients.
        grad_clip: largest norm of each row's gradient; None: no clipping.
    """

    def __init__(self, stack: Stack, grad_clip: float | None) -> None:
        self._stack, self._grad_clip = stack, grad_clip
        self._names = [name for name, _ in stack.module.trained_parameters()]
        # Views of the stack, so that each step changes it. The optimizer gets contiguous views,
        # because fused optimizers copy other tensors; autograd gets the unchanged views.
        self._trained = [stack.state[name].detach().requires_grad_() for name in self._names]
        self._start([dense(each.detach()) for each in self._trained])

    def narrow(self, rows: int) -> Tensors:
        """Continue with the first ``rows`` clients, and return their parameters and buffers.

        The result is name -> [rows, ...]. The trained parameters require gradients.
        """
        if self._trained and len(self._trained[0]) > rows:
            self._trained = [each.detach()[:rows].requires_grad_() for each in self._trained]
            self._keep_first(rows)
        trained = dict(zip(self._names, self._trained, strict=True))
        return {name: value[:rows] for name, value in self._stack.state.items()} | trained

    def gradients(self, losses: Tensor) -> Tensors:
        """Name -> gradients [rows, ...]: the gradient of each row's (client's) own loss.

        ``losses`` [rows] has the loss of each row. Parameters that the loss does not use are
        absent.
        """
        found = torch.autograd.grad(losses.sum(), self._trained, allow_unused=True)
        named = zip(self._names, found, strict=True)
        return {name: gradient for name, gradient in named if gradient is not None}

    def step(self, gradients: Mapping[str, Tensor], unclipped: Mapping[str, Tensor]) -> None:
        """Take one step in every row.

        Args:
            gradients: name -> gradient [rows, ...].
            unclipped: name -> [rows, ...], added to the gradients after clipping.
        """
        ordered: list[Tensor | None] = [
            dense(gradients[name], like=trained) if name in gradients else None
            for name, trained in zip(self._names, self._trained, strict=True)
        ]
        if self._grad_clip is not None:
            ordered = _clipped(ordered, self._grad_clip)
        for place, name in enumerate(self._names):
            if name in unclipped:
                added, own = dense(unclipped[name], like=self._trained[place]), ordered[place]
                ordered[place] = added if own is None else own + added
        self._set_gradients(ordered)
        self._optimizer.step()

    def _start(self, values: Sequence[Tensor]) -> None:
        """Create the optimizer over K clients' ``values`` [K, ...], views of the stack."""
        self._parameters = [nn.Parameter(value) for value in values]
        self._optimizer = self._stack.module.optimizer_for(self._parameters)

    def _keep_first(self, rows: int) -> None:
        """Drop all rows after the first ``rows`` from the optimizer."""
        self._parameters = [_narrow(self._optimizer, each, rows) for each in self._parameters]
        self._optimizer.param_groups[0]["params"] = self._parameters

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient


class PerClientOptimizer(StackedOptimizer):
    """One optimizer in which each row's parameters have their own state and step count.

    Each client continues from its kept state, although clients have taken different numbers of
    steps. The optimizer updates the rows one by one, so it is slower than ``StackedOptimizer``.

    Args:
        stack: the clients.
        grad_clip: largest norm of each row's gradient; None: no clipping.
        memories: for each row, the kept optimizer state of its client; empty if there is none.
    """

    def __init__(self, stack: Stack, grad_clip: float | None, memories: Sequence[Memory]) -> None:
        super().__init__(stack, grad_clip)
        # In memory, a stack may order a tensor's dimensions differently than the kept states do.
        self._orders = {
            name: [dim - 1 for dim in memory_order(value)[1:]]
            for name, value in zip(self._names, self._trained, strict=True)
        }
        self._all_rows = [dict(zip(self._names, each, strict=True)) for each in self._rows]
        kept = [self._permuted(memory, self._orders) for memory in memories]
        restore_optimizer(self._optimizer, zip(self._all_rows, kept, strict=True))

    def states(self) -> list[Memory]:
        """The optimizer state of each client (row of the stack), including finished clients."""
        inverse = {
            name: [order.index(dim) for dim in range(len(order))]
            for name, order in self._orders.items()
        }
        return [
            self._permuted(optimizer_state(self._optimizer, parameters), inverse)
            for parameters in self._all_rows
        ]

    def _start(self, values: Sequence[Tensor]) -> None:
        count = len(self._stack.turns)
        self._rows = [[nn.Parameter(value[row]) for value in values] for row in range(count)]
        self._optimizer = self._stack.module.optimizer_for(chain(*self._rows))

    def _keep_first(self, rows: int) -> None:
        self._rows = self._rows[:rows]
        training = {id(parameter) for parameter in chain(*self._rows)}
        for group in self._optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) in training]

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for row, parameters in enumerate(self._rows):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient[row]

    def _permuted(self, memory: Memory, orders: Mapping[str, list[int]]) -> Memory:
        """Permute the dimensions of the tensors in ``memory``, an optimizer's state.

        ``orders`` is parameter name -> order of the dimensions. Tensors with another number of
        dimensions than their parameter, such as step counts, do not change.
        """
        permuted = {}
        for key, value in memory.items():
            order = orders.get(key.rpartition("/")[0], [])
            fits = value.dim() == len(order)
            permuted[key] = value.permute(order).contiguous() if fits else value
        return permuted


def _narrow(optimizer: Optimizer, parameter: nn.Parameter, rows: int) -> nn.Parameter:
    """Return a parameter of the first ``rows`` rows, with these rows' optimizer state."""
    kept = nn.Parameter(parameter.data[:rows])
    state = optimizer.state.pop(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            state[name] = value[:rows]
    optimizer.state[kept] = state
    return kept


def _clipped(gradients: Sequence[Tensor | None], max_norm: float) -> list[Tensor | None]:
    """Scale each row's gradients to a joint norm of at most ``max_norm``.

    The result has new tensors: if a model uses two parameters only in their sum, both gradients may
    be one tensor, which must not be scaled twice.
    """
    given = [each for each in gradients if each is not None]
    squares = [each.square().reshape(len(each), -1).sum(dim=1) for each in given]
    norms = torch.stack(squares).sum(dim=0).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1)  # as torch.nn.utils.clip_grad_norm_
    return [
        None if each is None else each * scale.view(-1, *[1] * (each.dim() - 1))
        for each in gradients
    ]
