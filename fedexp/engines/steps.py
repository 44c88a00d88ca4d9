"""The steps of a client's local training: forward, backward, clip, optimizer."""

from collections.abc import Callable

from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch

Steps = Callable[[Batch, int], Tensor]
"""(batch, its number in the epoch) -> the loss before this step, without gradient."""


class EagerSteps:
    """Each operation of a step is launched when Python comes to it.

    Args:
        fabric: device and precision.
        module: the resident module, in a phase of a client's training.
        optimizer: of the parameters that are trained.
        grad_clip: largest norm of a step's gradient; None does not clip.
    """

    def __init__(
        self, fabric: Fabric, module: ClientModule, optimizer: Optimizer, grad_clip: float | None
    ) -> None:
        self.fabric, self.module = fabric, module
        self.optimizer, self.grad_clip = optimizer, grad_clip

    def __call__(self, batch: Batch, number: int) -> Tensor:
        """Take one step."""
        with self.fabric.autocast():
            loss = self.module.training_step(batch, number)
        self.descend(loss)
        return loss.detach()

    def descend(self, loss: Tensor) -> None:
        """Change the parameters by the gradient of ``loss``."""
        self.fabric.backward(loss)
        if self.grad_clip is not None:
            # Not an error if it is not finite, as that waits for the device: see ``Quarantine``.
            self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.grad_clip, error_if_nonfinite=False
            )
        self.module.add_unclipped_gradient()
        self.optimizer.step()
        self.optimizer.zero_grad()
