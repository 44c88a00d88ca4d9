"""Trajectory matching: learn synthetic images such that training on them reaches a given model.

The gradient with respect to the images is computed by backpropagation through the training steps
on these images. MTT uses trajectory matching for dataset distillation (Cazenavette et al., CVPR
2022), and FedPTR uses it for federated learning.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedexp.core.messages import Tensors

FunctionalLoss = Callable[[Tensors, Tensor, Tensor], Tensor]
"""A twice differentiable function (parameters, inputs, labels) -> the loss, a scalar."""

Augment = Callable[[], Callable[[Tensor], Tensor]]
"""A function that draws a differentiable transform of the images, for one inner step.

A transform is deterministic: it always maps the same images to the same result.
"""


def match_trajectory(
    functional_loss: FunctionalLoss,
    start: Tensors,
    end: Tensors,
    synthetic: Tensor,
    labels: Tensor,
    step_size: Tensor,
    outer_steps: int = 20,
    inner_steps: int = 10,
    image_lr: float = 1000.0,
    step_lr: float = 1e-5,
    momentum: float = 0.5,
    recompute: bool = False,
    augment: Augment | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Learn images and a step size that lead from ``start`` to ``end`` (FedPTR, Alg. 1).

    Each outer step is one step of SGD with momentum on ``matching_loss``. The function leaves its
    arguments unchanged. Learning may diverge: check that the resulting images and step size are
    finite.

    Args:
        functional_loss: the loss of the inner steps.
        start: name -> parameter at the start of the inner steps.
        end: name -> parameter that the inner steps should reach. At least one parameter must
            differ from ``start``.
        synthetic: initial images [n, *input_shape].
        labels: fixed labels [n] of the images.
        step_size: initial inner learning rate, a scalar.
        outer_steps: number of updates of the images and of the step size.
        inner_steps: gradient steps from ``start`` in each outer step.
        image_lr: learning rate of the images.
        step_lr: learning rate of the step size.
        momentum: momentum factor of SGD for the images and the step size. SGD starts with zero
            velocity.
        recompute: whether to repeat each inner step in the backward pass, to save memory.
        augment: draws a transform of the images before each inner step; None for no transform.

    Returns:
        The images, the step size (which may be negative) and the losses [outer_steps]. The loss of
        an outer step is computed before the step's update.
    """
    images = synthetic.detach().clone().requires_grad_()
    size = step_size.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD(
        [{"params": [images], "lr": image_lr}, {"params": [size], "lr": step_lr}],
        lr=image_lr,
        momentum=momentum,
    )
    losses = []
    for _ in range(outer_steps):
        loss = matching_loss(
            functional_loss, start, end, images, labels, size, inner_steps, recompute, augment
        )
        images.grad, size.grad = torch.autograd.grad(loss, (images, size))
        optimizer.step()
        losses.append(loss.detach())
    return images.detach(), size.detach(), torch.stack(losses)


def matching_loss(
    functional_loss: FunctionalLoss,
    start: Tensors,
    end: Tensors,
    synthetic: Tensor,
    labels: Tensor,
    step_size: Tensor,
    inner_steps: int,
    recompute: bool = False,
    augment: Augment | None = None,
) -> Tensor:
    """The relative squared distance from ``end`` after the inner steps, a scalar.

    The R inner steps lead from w_0 = start to w_R. A step is
    w_(r+1) = w_r - step_size * gradient(w_r), with the gradient of ``functional_loss`` on all
    images. The result is ||w_R - end||^2 / ||start - end||^2, so it is 1 if w_R = start. It is
    differentiable with respect to ``synthetic`` and ``step_size``.

    The arguments are those of ``match_trajectory``; R is ``inner_steps``. With ``recompute`` a step
    is repeated in the backward pass, with the same transform, instead of storing all activations.
    This needs the memory of one step and R copies of the parameters, and changes the result only by
    rounding.
    """

    def step(
        transform: Callable[[Tensor], Tensor] | None, images: Tensor, size: Tensor, *values: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = images if transform is None else transform(images)
        loss = functional_loss(dict(zip(start, values, strict=True)), inputs, labels)
        gradients = torch.autograd.grad(loss, values, create_graph=True, materialize_grads=True)
        return tuple(w - size * g for w, g in zip(values, gradients, strict=True))

    values = tuple(value.detach().requires_grad_() for value in start.values())
    for _ in range(inner_steps):
        this_step = partial(step, None if augment is None else augment())
        if recompute:
            values = _Recomputed.apply(this_step, synthetic, step_size, *values)
        else:
            values = this_step(synthetic, step_size, *values)
    arrived = dict(zip(start, values, strict=True))
    return squared_distance(arrived, end) / squared_distance(start, end)


def project(
    functional_loss: FunctionalLoss,
    start: Tensors,
    synthetic: Tensor,
    labels: Tensor,
    steps: int = 5,
    lr: float = 0.01,
) -> Tensors:
    """Take plain gradient steps from ``start`` on the images; return the final parameters."""
    projected = {name: value.detach() for name, value in start.items()}
    for _ in range(steps):
        leaves = {name: value.requires_grad_() for name, value in projected.items()}
        loss = functional_loss(leaves, synthetic, labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        moves = zip(leaves.items(), gradients, strict=True)
        projected = {name: value.detach() - lr * gradient for (name, value), gradient in moves}
    return projected


def squared_distance(a: Tensors, b: Tensors) -> Tensor:
    """||a - b||^2 over all tensors of ``a``, a scalar."""
    return torch.stack([(value - b[name]).square().sum() for name, value in a.items()]).sum()


class _Recomputed(torch.autograd.Function):
    """Runs a step without storing its graph, and runs it again with a graph in the backward pass.

    ``torch.utils.checkpoint`` cannot replace this class: a step contains a backward pass, which
    would trigger the recomputation immediately.
    """

    @staticmethod
    def forward(
        ctx: Any, step: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.step = step
        ctx.save_for_backward(*inputs)
        return tuple(output.detach() for output in _run_on_leaves(step, inputs)[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        leaves, outputs = _run_on_leaves(ctx.step, ctx.saved_tensors)
        return (None, *torch.autograd.grad(outputs, leaves, gradients))


def _run_on_leaves(
    step: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Run the step on detached copies of its inputs; return the copies and the outputs."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    with torch.enable_grad():
        return leaves, step(*leaves)
