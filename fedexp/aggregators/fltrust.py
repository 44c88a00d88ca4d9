"""FLTrust: the server trusts a client whose step has the direction of the server's own step."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from fedexp.aggregators.clipping import MEASURES_STEPS
from fedexp.aggregators.global_step import GlobalStep
from fedexp.config.compatibility.traits import (
    DERIVES_CLASSIFIER,
    PRIVATE_STATISTICS,
    UNTRAINED_CLASSIFIER,
    Need,
)
from fedexp.config.compatibility.unread import given
from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.data.batches import nearest_steps
from fedexp.errors import InputError


class FLTrust(GlobalStep):
    """The global step is the mean of rescaled steps, weighted by trust (Cao et al., NDSS 2021).

    The server holds a small dataset of its own, the root dataset. In every round it trains the
    global model on this dataset as a client does (Algorithm 1), with the local optimizer and the
    cross-entropy. g_0 is the resulting step, and g_k is the step of client k. The client's trust
    score is $max(0, cos(g_k, g_0))$. After each g_k is rescaled to the norm of g_0, the global step
    is $lr * sum_k score_k g_k / sum_k score_k$ (Algorithm 2). g_0 and g_k contain only the trained
    parameters. Float buffers are averaged with the trust scores as weights. If all scores are 0,
    parameters and float buffers do not change.

    Approximations: when the server trains, BatchNorm uses the global statistics and dropout is not
    active. With ``local.epochs`` the server takes fewer steps than a client with more samples, and
    usually g_0 is shorter than that client's step. With ``local.steps`` the server and the clients
    take equally many. The root dataset is drawn from the clients' training data before any attack;
    the clients train on these samples, too. Rounds that leave the global weights as they were do
    not count in the schedule of the server's learning rate.

    Metric: ``aggregator/trusted``, the share of clients with a positive score.

    Args:
        samples: size of the root dataset.
        balanced: whether the root dataset has equally many samples of each class. If false, it is
            drawn uniformly.
        epochs: passes over the root dataset in a round. The number of training steps is the nearest
            whole number, at least one.
        steps: number of training steps of the server in a round, in place of ``epochs``; or None.
        batch_size: the number of root samples in a training step of the server.
        grad_clip: largest gradient norm of a step, or None for no clipping.
        lr: alpha, the global learning rate.
    """

    unread_if = {"epochs": {"steps": given}}
    reads = frozenset({"optimizer"})

    saved = ("round",)
    takes_tokens = False
    discourages = MEASURES_STEPS
    needs = {
        Need.ALL_CLIENTS: "aggregator=fltrust: draws its root dataset from the samples of all "
        "clients at once, which these data lack; take another aggregator"
    }
    forbids = {
        UNTRAINED_CLASSIFIER: "aggregator=fltrust: the server trains the global model as clients "
        "do, but this {other} has a classifier that no client trains; use head=linear",
        DERIVES_CLASSIFIER: "aggregator=fltrust: the server trains the global model, but this "
        "{other} computes its classifier from class means, which at the server are those of the "
        "client that trained last; use head=linear",
        PRIVATE_STATISTICS: "aggregator=fltrust: the server trains the whole model, but with this "
        "{other} it has no running statistics; use a personalization that shares all weights",
    }

    def __init__(
        self,
        samples: PositiveInt,
        balanced: bool,
        epochs: PositiveFloat,
        steps: PositiveInt | None,
        batch_size: PositiveInt,
        grad_clip: PositiveFloat | None,
        lr: PositiveFloat,
    ) -> None:
        super().__init__()
        self.samples, self.balanced = samples, balanced
        self.epochs, self.steps, self.batch_size = epochs, steps, batch_size
        self.grad_clip, self.lr = grad_clip, lr
        self.round = 0
        self._root: tuple[Tensor, Tensor] | None = None
        self._own_step: Tensors = {}
        self._trusted = 0.0

    def setup(self, setting: Setting) -> None:
        """Store the setting. Raises InputError if the clients do not send every parameter."""
        self.setting = setting
        if private := sorted(setting.model.parameters.keys() - setting.model.shared):
            raise InputError(
                f"aggregator=fltrust: the server trains the whole model, but {private[0]} is not "
                "sent; use a personalization that shares all weights"
            )

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """Train at the server, then return the next global weights."""
        self._own_step = self._trained(current, self.round + 1)
        return super().combine(updates, current)

    def global_step(self, steps: Tensors) -> Tensors:
        """The mean of the clients' steps, weighted by trust.

        First, the parameters of each step are rescaled to the norm of the server's own step. Their
        mean is multiplied by ``lr``.
        """
        cosines, lengths, own = compared(steps, self._own_step)
        trust = cosines.clamp(min=0)
        self._trusted = (trust > 0).double().mean().item()
        shares = trust / trust.sum() if trust.sum() > 0 else trust
        factors = self.lr * shares * own / lengths.where(lengths > 0, 1)
        return {
            name: torch.einsum(
                "k,k...->...", (factors if name in self._own_step else shares).to(x), x
            )
            for name, x in steps.items()
        }

    def commit(self) -> None:
        """Count the round."""
        self.round += 1

    def metrics(self) -> dict[str, float]:
        """The share of trusted clients."""
        return {"aggregator/trusted": self._trusted}

    def _trained(self, current: Tensors, round: int) -> Tensors:
        """The server's own step g_0 of a round: name of a parameter -> float64 tensor."""
        setting = self.setting
        if self._root is None:
            self._root = setting.server.draw_samples("root_dataset", self.samples, self.balanced)
        inputs, labels = self._root
        model = setting.server.global_model(round, current)
        weights = {name: nn.Parameter(current[name].clone()) for name in setting.model.parameters}
        optimizer = setting.server.local_optimizer(weights.values(), round)
        order = torch_generator(setting.seed, "root_batches", round)
        for index in self._batches(labels, order):
            loss = F.cross_entropy(model(dict(weights), inputs[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.grad_clip is not None:
                nn.utils.clip_grad_norm_(weights.values(), self.grad_clip)
            optimizer.step()
        return {name: (w.detach() - current[name]).double() for name, w in weights.items()}

    def _batches(self, labels: Tensor, order: torch.Generator) -> Iterator[Tensor]:
        """The positions [B] of the samples of each training step, among n with ``labels`` [n]."""
        in_epoch = -(-len(labels) // self.batch_size)
        left = self.steps or nearest_steps(self.epochs, in_epoch)
        while left > 0:
            permutation = to_device(torch.randperm(len(labels), generator=order), labels.device)
            yield from torch.split(permutation, self.batch_size)[:left]
            left -= in_epoch


def compared(steps: Tensors, own: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Compare the clients' steps with the server's step in direction and norm.

    Args:
        steps: name -> [K, ...], the clients' steps. Names that are not in ``own`` are ignored.
        own: name -> [...], the server's step.

    Returns:
        Three tensors on the CPU. The first has the cosines [K] of the clients' steps with the
        server's step; the cosine of a zero step is 0. The second has the norms [K] of the clients'
        steps. The third is the norm of the server's step.
    """
    flat = [
        (steps[name].reshape(len(steps[name]), -1), value.flatten()) for name, value in own.items()
    ]
    inner = torch.stack([x @ y for x, y in flat]).cpu().sum(dim=0)
    lengths = torch.stack([x.square().sum(dim=1) for x, _ in flat]).cpu().sum(dim=0).sqrt()
    length = torch.stack([y.square().sum() for _, y in flat]).cpu().sum().sqrt()
    product = lengths * length
    return inner / product.where(product > 0, 1), lengths, length
