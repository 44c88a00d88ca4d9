"""SCAFFOLD: control variates correct each client's gradients for the difference between clients."""

import logging
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import (
    ACTS_ON_SHARED,
    DIVIDES_STEPS,
    KEEPS_MOMENTUM,
    TAKES_STALE,
)
from fedexp.contract import Client, Memory, PartMessage, Regularizer, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.unit_distance import optimizer_of, unit_distance
from fedexp.regularizers.anchors import Anchors, Scaling, combine, total

LOGGER = logging.getLogger(__name__)
_KEPT_MOMENTUM = (
    "local.keep_optimizer=true: control variates estimate gradients from a round's step; the "
    "momentum of earlier rounds lengthens the step, and they diverge; use "
    "optimizer.momentum=0, regularizer.estimate=gradient or local.keep_optimizer=false"
)


class ControlVariates(Regularizer):
    """Corrects the gradients of local steps for the difference between clients (SCAFFOLD).

    The term $<c - c_k, w>$ over the trained shared parameters w is added to the loss (Karimireddy
    et al., ICML 2020, Alg. 1). So a local step uses $g - c_k + c$ in place of the gradient g. The
    control variate c_k of client k estimates the client's gradient. The server's control variate c
    estimates the mean gradient of the population. w^t is the model that local training starts from,
    usually the received one, and w_k is the model after training. After training, the client
    updates c_k by one of

        option I: $c_k <-$ the gradient of the client's loss at w^t
        option II: $c_k <- c_k - c + (w^t - w_k) / (steps * learning rate)$

    and reports the change of c_k. The server adds the sum of these changes, divided by N, to c. N
    is the number of clients with data. So c is the mean of all c_k, as long as every round counts:
    in a round that the server skips, the clients keep their new c_k. All control variates start at
    zero, so the server sends no c in the first round. The aggregator determines the
    server's learning rate: ``aggregator=uniform`` gives the paper's learning rate 1.

    Option II costs no computation. With plain SGD its last term is the mean of the round's
    gradients. For SGD with momentum, ``unit_distance`` replaces ``steps`` and makes the term a
    weighted mean of the gradients. (With ``steps`` the term would be up to 1 / (1 - momentum) times
    as large, and c_k would diverge.) With an adaptive optimizer the term is not a mean of
    gradients. The estimate includes weight decay and gradient clipping. ``steps`` is the number of
    all local steps of the round. If a personalization trains a parameter in only some of these
    steps, the control variates of this parameter are too small.

    Option I works with every optimizer and costs a forward and a backward pass over the client's
    data. It uses the gradient of the loss without regularizer. The module is in train mode, as in
    local training: BatchNorm normalises with each batch's statistics. All samples are used, without
    augmentation, clipping and weight decay. If the loss is much steeper at w^t than at the later
    local models, $c - c_k$ is larger than the gradients and training diverges. This happened with
    ``head=etf`` and SGD; option II did not diverge.

    At the fixed point of training c is zero, for any aggregator. With ``weighting=uniform``, as in
    the paper, the fixed point is the optimum of the mean of all clients' objectives. With
    ``weighting=samples`` the mean is weighted by the clients' numbers of samples. The aggregator
    should use the same weights.

    The implementation that FedPTR's authors released as a baseline has ``weighting=samples`` and
    ``correction_scaling=samples`` with ``aggregator=uniform``.

    Args:
        weighting: with ``uniform`` all clients have the same weight in c. With ``samples`` the
            change of c_k is multiplied by the client's relative size s_k = n_k / mean(n).
        estimate: estimate of a client's gradient. ``gradient`` is option I. ``steps`` is option II;
            it logs one warning if the local optimizer is not SGD. ``auto`` means ``steps`` with
            SGD, otherwise ``gradient``.
        correction_scaling: with ``samples`` c is divided by s_k in the corrected gradients, but not
            in the update of option II. With ``none`` c is never divided.
    """

    summed = True
    saved = ("mean",)
    # TAKES_STALE: c stays the mean of all c_k, whenever a change arrives.
    traits = frozenset({ACTS_ON_SHARED, TAKES_STALE})

    def __init__(
        self,
        weighting: Literal["uniform", "samples"],
        estimate: Literal["auto", "steps", "gradient"],
        correction_scaling: Scaling,
    ) -> None:
        super().__init__()
        self.weighting, self.estimate = weighting, estimate
        self.correction_scaling = correction_scaling
        if estimate != "gradient":
            self.forbids = {KEEPS_MOMENTUM: _KEPT_MOMENTUM}
            self.traits = self.traits | {DIVIDES_STEPS}

    def setup(self, setting: Setting) -> None:
        """Make buffers for c - c_k, the server's control variate minus the client's.

        Also set c, named ``mean``, to empty, which means 0.
        """
        self.correction = Anchors(setting.model.shared_parameters)
        self.clients = setting.clients
        self.mean: Tensors = {}
        self._chosen: str | None = None

    def broadcast(self, round: int) -> Tensors:
        """Send the server's control variate c, from the second round on."""
        return prefixed("variate", self.mean)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set c - c_k, the server's control variate minus this client's.

        With option I also compute the client's gradient at the model that training starts from;
        with option II store this model.
        """
        self._sent = with_prefix("variate", message.extras)  # c, the same for all clients
        self.correction.fill(combine(self._received(client), with_prefix("variate", memory), -1))
        if self._chosen is None:
            self._chosen = _choose(self.estimate, optimizer_of(client))
        if self._chosen == "gradient":
            gradient = client.loss_gradient()
            memory.update(prefixed("gradient", {n: gradient[n] for n in self.correction}))
        else:
            start = {name: client.weights[name].clone() for name in self.correction}
            memory.update(prefixed("start", start))

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The term <c - c_k, w>, a scalar.

        c and c_k are the control variates of the server and the client, and w are the parameters.
        """
        return total(
            [(self.correction[n] * w).sum() for n, w in parameters if n in self.correction]
        )

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Update the client's control variate c_k; return the change, which the client sends.

        With ``weighting=samples`` the sent change is multiplied by the client's relative size s_k.
        """
        if self._chosen == "gradient":
            new = {n: memory.pop(f"gradient/{n}") for n in self.correction}
            old = with_prefix("variate", memory)
        else:
            new, old = self._mean_step(client, memory), self._expected_step(client, memory)
        change = prefixed("variate", combine(new, old, -1))
        memory.update(combine(memory, change))
        if self.weighting == "uniform":
            return change
        size = self.clients.relative_size(client.num_samples)
        return {name: size * value for name, value in change.items()}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Add the changes of the clients' control variates, divided by N, to the server's.

        N is the number of clients with data. The merged weights are returned unchanged.
        """
        changes = with_prefix("variate", sums)
        n = self.clients.num_with_data
        steps = {name: (s / n).to(current[name].dtype) for name, s in changes.items()}
        self.mean = combine(self.mean, steps)
        return merged

    def _received(self, client: Client) -> Tensors:
        """The server's control variate c; with ``correction_scaling=samples`` it is divided by s_k.

        s_k is the client's relative size.
        """
        if self.correction_scaling == "none":
            return self._sent
        size = self.clients.relative_size(client.num_samples)
        return {name: value / size for name, value in self._sent.items()}

    def _mean_step(self, client: Client, memory: Memory) -> Tensors:
        """Compute the (weighted) mean of the round's gradients from the change of the weights."""
        start, weights = {n: memory.pop(f"start/{n}") for n in self.correction}, client.weights
        # Not in ``begin``: only now the optimizer is the one of the phases of training.
        distance = unit_distance(optimizer_of(client), client.steps) * client.learning_rate
        return {name: (w - weights[name]) / distance for name, w in start.items()}

    def _expected_step(self, client: Client, memory: Memory) -> Tensors:
        """The result of ``_mean_step`` that would leave the client's control variate c_k unchanged.

        In option II it is the server's control variate c.
        """
        return self._sent


def _choose(estimate: str, optimizer: torch.optim.Optimizer) -> str:
    """Choose ``steps`` or ``gradient``.

    If the optimizer is not SGD, log the choice of ``auto``, or a warning about ``steps``.
    """
    if estimate == "gradient":
        return "gradient"
    if isinstance(optimizer, torch.optim.SGD):
        return "steps"
    name = type(optimizer).__name__.lower()
    if estimate == "auto":
        LOGGER.info(
            "regularizer.estimate=auto: the steps of optimizer=%s are no sums of gradients; "
            "control variates are full gradients at the received model",
            name,
        )
        return "gradient"
    LOGGER.warning(
        "regularizer.estimate=steps: control variates may diverge with optimizer=%s", name
    )
    return "steps"
