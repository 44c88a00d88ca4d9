"""FedPTR's synthetic dataset, which a client or the server learns from the global model's step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.contract import Functional, Memory, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.regularizers.dsa import draw_transform
from fedexp.regularizers.matching import Augment, FunctionalLoss, match_trajectory


@dataclass(frozen=True)
class MatchingOptions:
    """Hyper-parameters of ``match_trajectory``, which explains them."""

    outer_steps: int
    inner_steps: int
    image_lr: float
    step_lr: float
    momentum: float
    recompute: bool


@dataclass(frozen=True)
class StepMatching:
    """Learns the synthetic dataset D~ from the global model's step from w^(t-m) to w^t.

    ``Trajectory`` explains the method. The memory holds ``synthetic``, which is D~
    [C * ipc, *input_shape] with ipc images of each of C classes. It also holds ``step_size``, and
    in ``seen`` the number of received models. The last m received models are stored as
    ``<slot>/<name>``, where the slot is the model's number modulo m.

    Attributes:
        lag: m. w^(t-m) was received m models before w^t.
        wait: number of received models to skip, beginning with the first for which w^(t-m) exists.
        step_size: initial size of the inner steps.
        update_every: number of received models from one learning of D~ to the next. If None, D~ is
            learned only once.
        augment: whether to apply Differentiable Siamese Augmentation before every inner step.
        options: hyper-parameters of ``match_trajectory``.
        names: the parameters whose step is matched.
    """

    lag: int
    wait: int
    step_size: float
    update_every: int | None
    augment: bool
    options: MatchingOptions
    names: frozenset[str] = frozenset()

    def learn(
        self,
        memory: Memory,
        weights: Tensors,
        model: Functional,
        labels: Tensor,
        draw: Callable[[], Tensor],
        generator: Generator,
    ) -> tuple[Tensors, dict[str, float]]:
        """Learn D~; return the parameters of w^t that changed since w^(t-m), and metrics.

        If ``update_every`` skips this model, D~ does not change. Both results are empty if no
        parameter changed, if there is no w^(t-m) yet, or while ``wait`` skips models.

        Args:
            memory: memory of the client or the server. This method stores ``weights`` and the new
                D~ in it.
            weights: w^t.
            model: the global model, as a function (parameters, inputs) -> logits.
            labels: labels of D~ [C * ipc].
            draw: a function that returns the initial D~.
            generator: the generator that draws the augmentation.
        """
        past = self.remember(memory, weights)
        changed = {name: past[name] for name in _different(past, weights)}
        if not changed or int(memory["seen"]) <= self.lag + self.wait:
            return {}, {}
        now = {name: weights[name] for name in changed}
        loss = cross_entropy_of(model)
        metrics = {"trajectory/diverged": 0.0}
        if self._is_due(memory):
            metrics |= self._learn(memory, loss, changed, now, labels, draw, generator)
        if "synthetic" in memory:
            metrics["trajectory/step_size"] = memory["step_size"].item()
        return now, metrics

    def remember(self, memory: Memory, weights: Tensors) -> Tensors:
        """Store the received model w^t in place of w^(t-m), which was received m models earlier.

        Returns w^(t-m), or nothing if it does not exist yet.
        """
        seen = int(memory.get("seen", 0))
        slot = str(seen % self.lag)
        past = with_prefix(slot, memory)
        # The server's weights never change in place, so clients can store them without copies.
        memory.update(prefixed(slot, {n: w for n, w in weights.items() if n in self.names}))
        memory["seen"] = torch.tensor(seen + 1)
        return past

    def _is_due(self, memory: Memory) -> bool:
        """Whether to learn the synthetic dataset D~ now."""
        if "synthetic" not in memory or self.update_every is None:
            return "synthetic" not in memory
        return (int(memory["seen"]) - 1 - self.lag - self.wait) % self.update_every == 0

    def _learn(
        self,
        memory: Memory,
        loss: FunctionalLoss,
        past: Tensors,
        now: Tensors,
        labels: Tensor,
        draw: Callable[[], Tensor],
        generator: Generator,
    ) -> dict[str, float]:
        """Learn the synthetic dataset D~ and the step size; return metrics.

        If D~ and the step size are finite, they are stored. Otherwise neither is stored.
        """
        begun = "synthetic" in memory
        images = memory["synthetic"] if begun else draw()
        size = memory["step_size"] if begun else torch.tensor(self.step_size).to(images)
        augment: Augment | None = None
        if self.augment:
            augment = partial(draw_transform, tuple(images.shape), generator, images.device)
        images, size, losses = match_trajectory(
            loss, past, now, images, labels, size, **vars(self.options), augment=augment
        )
        if not (images.isfinite().all() & size.isfinite()):
            return {"trajectory/diverged": 1.0}
        memory.update(synthetic=images, step_size=size)
        return {"trajectory/matching_loss": losses[-1].item()}


def _different(past: Tensors, weights: Tensors) -> list[str]:
    """The names of the tensors in ``past`` that differ from ``weights``; waits for a GPU once."""
    if not past:
        return []
    differ = torch.stack([(old != weights[name]).any() for name, old in past.items()])
    return [name for name, differs in zip(past, differ.tolist(), strict=True) if differs]


def cross_entropy_of(model: Functional) -> FunctionalLoss:
    """The mean cross-entropy of ``model`` as a function of parameters, inputs and labels."""
    return lambda parameters, inputs, labels: F.cross_entropy(model(parameters, inputs), labels)
