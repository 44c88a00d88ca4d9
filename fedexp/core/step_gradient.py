"""The gradient of a client's local step at the weights that a ``LocalGradient`` asks for."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedexp.core.client_protocol import Batch, GradientAt
from fedexp.core.forward import autocast_like
from fedexp.core.local_model import LocalModel
from fedexp.core.messages import Tensors


class StepGradient:
    """Replaces the gradients of one step by the gradients that a ``LocalGradient`` computes.

    Construct this object in the step's autocast context, to compute gradients in that precision.

    Args:
        module: the client's model.
        rule: computes the gradient that replaces the step's gradient; see
            ``LocalGradient.forward``.
        objective: (batch, ``real`` [B] or None) -> the objective, a scalar; see ``Forward.real``.
        batch: the samples of the step.
    """

    def __init__(
        self,
        module: LocalModel,
        rule: Callable[[Tensors, Tensors, GradientAt], Tensors],
        objective: Callable[[Batch, Tensor | None], Tensor],
        batch: Batch,
    ) -> None:
        self._module, self._rule, self._objective = module, rule, objective
        self._batch, self._autocast = batch, autocast_like(module.device.type)

    def replace(self) -> None:
        """Replace the module's gradients; weights and running statistics do not change."""
        module = self._module
        start = {name: value.clone() for name, value in module.weights.items()}
        trained = dict(module.trained_parameters())

        def gradient_at(parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
            module.load(start | parameters)
            inputs, targets, real = part_of(*self._batch, None, part, parts)
            with self._autocast():
                loss = self._objective((inputs, targets), real)
            found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            return dict(zip(trained, found, strict=True))

        own = {name: value.grad for name, value in trained.items() if value.grad is not None}
        taken = self._rule({name: start[name] for name in trained}, own, gradient_at)
        module.load(start)
        for name, value in trained.items():
            value.grad = taken.get(name)


def part_of(
    inputs: Tensor, targets: Tensor, real: Tensor | None, part: int, parts: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Every ``parts``-th sample of a batch [B], beginning at ``part``: (inputs, targets, real).

    ``Forward`` explains ``real``. If ``part`` is beyond the batch, the result is the first sample.
    """
    if len(targets) <= part:
        part = 0
    rows = slice(part, None, parts)
    if real is None or part == 0:
        return inputs[rows], targets[rows], None if real is None else real[rows]
    # In a stack of clients, a client's part is beyond its batch if its first row is padding.
    inputs, targets, real = (
        torch.cat((torch.where(real[part] > 0, value[part], value[0])[None], value[rows][1:]))
        for value in (inputs, targets, real)
    )
    return inputs, targets, real
