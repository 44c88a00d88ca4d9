"""FedDyn: dynamic regularization, which aligns the local optima with the global optimum."""

from collections.abc import Iterable, Mapping

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import (
    ACTS_ON_SHARED,
    ADDS_DRIFT,
    DRAWS_REPEATEDLY,
    NOT_THE_MEAN,
    OTHER_GRADIENT,
    OTHER_STARTS,
    SENDS_OTHER,
)
from fedexp.contract import Client, Memory, PartMessage, Regularizer, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.regularizers.anchors import Anchors, Scaling, combine, total


class Dynamic(Regularizer):
    """The penalty $-<h_k, w> + (alpha/2) ||w - w^t||^2$ on trained shared parameters (FedDyn).

    The method is from Acar et al., ICLR 2021, Alg. 1. w^t is the received global model, and w_k is
    the model after training. N is the number of clients that have data. The vectors h_k of client k
    and h of the server are 0 at first. After training, client k updates h_k, and the server updates
    h and the global model:

        $h_k <- h_k - alpha (w_k - w^t)$,
        $h <- h - (alpha / N) sum_cohort (w_k - w^t)$,
        $w^(t+1) = mean_cohort w_k - h / alpha$.

    So h is the mean of all h_k. The code stores drifts instead of h_k and h. Client k stores its
    drift $d_k = -h_k / alpha$, the sum of its steps $w_k - w^t$. The server stores the population's
    mean drift, $-h / alpha$. Messages and updates contain only the weights.

    At the fixed point of training every w_k equals w^t, and h is zero. Then h_k is the gradient of
    the client's loss F_k, so the gradients of all F_k sum to zero. This needs
    ``aggregator=uniform``, because the server computes the sum of the steps from the cohort's mean.
    With ``sample_weighted`` and all clients in every round, the fixed point is the optimum of the
    mean of all F_k weighted by samples. With ``sample_weighted`` and smaller cohorts it is the
    optimum of no particular objective. Do not use an aggregator with a server optimizer.

    The authors' code evaluates two models without the mean drift: the mean of the cohort's models,
    and the mean of the last models of all clients, whose accuracy it plots. ``measure=mean_model``
    reports the accuracy of the first as ``global/accuracy_mean_model``. ``global/accuracy`` is the
    accuracy of w^(t+1).

    $alpha = 0$ switches off all terms and gives exactly FedAvg. With any $alpha > 0$, however
    small, the server adds the whole mean drift.

    The authors' code has ``alpha_scaling=samples`` and ``clip_quadratic=false``, and SGD without
    momentum; this is ``algorithm=feddyn``. Copies of it are in the released code of FedDC and of
    FedPTR. It uses $||w - w^t||^2 = ||w||^2 - 2 <w^t, w> + const$. The optimizer applies
    $(alpha_k/2) ||w||^2$ as weight decay, without clipping. The loss has the term
    $-alpha_k <w^t, w>$. With ``alpha_scaling=samples`` and ``aggregator=uniform`` the fixed point
    is the optimum of the mean of all F_k weighted by samples, because there the gradient of F_k is
    $-alpha_k d_k$.

    The defaults are the paper's Algorithm 1, which has one alpha for all clients and does not
    mention clipping. ``algorithm=feddyn_paper`` has them.

    Args:
        alpha: the penalty's strength.
        alpha_scaling: with ``none``, as in the paper, all clients have the same alpha. With
            ``samples`` client k has alpha_k = alpha * mean(n) / n_k, where n_k is its number of
            samples.
        clip_quadratic: whether ``local.grad_clip`` clips the whole gradient. If false, the term
            alpha w of the gradient is added after clipping. The logged loss then does not include
            (alpha/2) (||w||^2 + ||w^t||^2). If nothing is clipped, the option changes gradients
            only by rounding. Because the term does not go through ``gradient``, that must be
            ``plain``.
    """

    unread_if = {name: {"alpha": (0,)} for name in ("alpha_scaling", "clip_quadratic")}
    takes_only_merged = True
    saved: tuple[str, ...] = ("mean_drift",)
    traits = frozenset({ACTS_ON_SHARED, ADDS_DRIFT})
    # The server computes the sum of the clients' steps from the cohort's mean. So all clients must
    # have the same weight in this mean, and start from the global weights.
    discourages: Mapping[str, str] = {
        NOT_THE_MEAN: "FedDyn, FedDC: the server expects the merged weights to be the mean of the "
        "cohort's; with this {other} its mean drift is wrong; take another {other}; "
        "aggregator=uniform fits",
        DRAWS_REPEATEDLY: "FedDyn, FedDC: a client that this sampler draws twice counts twice in "
        "the cohort's mean, but its drift grows once, so that the server's mean drift is wrong; "
        "use sampler=random",
        SENDS_OTHER: "FedDyn, FedDC: the server computes the clients' steps from the weights that "
        "they send; with this {other} these are not the trained ones; the server's mean drift is "
        "then wrong",
        **dict.fromkeys(
            OTHER_STARTS,
            "FedDyn, FedDC: the server computes the clients' steps from the global weights; this "
            "{other} may start clients from other weights; the server's mean drift is then wrong",
        ),
    }
    relative_strength: Tensor

    def __init__(
        self, alpha: NonNegativeFloat, alpha_scaling: Scaling, clip_quadratic: bool
    ) -> None:
        super().__init__()
        self.alpha, self.alpha_scaling = alpha, alpha_scaling
        self.clip_quadratic = clip_quadratic
        if alpha > 0 and not clip_quadratic:
            self.forbids = {
                OTHER_GRADIENT: "regularizer.clip_quadratic=false: this {other} would change "
                "only a part of the penalty's gradient; use regularizer.clip_quadratic=true"
            }

    def setup(self, setting: Setting) -> None:
        """Make buffers for the received model w^t, the client's drift d_k and alpha_k / alpha.

        alpha_k is the client's own strength of the penalty. Also set the mean drift to empty, which
        means zero.
        """
        shapes = setting.model.shared_parameters
        self.start, self.drift = Anchors(shapes), Anchors(shapes)
        self.register_buffer("relative_strength", torch.ones(()), persistent=False)
        self.clients = setting.clients
        self.mean_drift: Tensors = {}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set this client's initial weights, its drift and its strength alpha_k of the penalty."""
        self.start.set(client.weights)
        self.drift.fill(with_prefix("drift", memory))
        if self.alpha_scaling == "samples":
            size = self.clients.relative_size(client.num_samples)
            self.relative_strength.fill_(1 / size)

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar, without the part whose gradient ``unclipped_gradient`` returns."""
        shared = self._shared(parameters)
        linear = total([(self.drift[name] * value).sum() for name, value in shared])
        if not self.clip_quadratic:
            products = total([(self.start[name] * value).sum() for name, value in shared])
            return self._scaled(self.alpha * (linear - products))
        squares = total([(value - self.start[name]).square().sum() for name, value in shared])
        return self._scaled(self.alpha * (linear + 0.5 * squares))

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """The part alpha_k w of the penalty's gradient, or nothing.

        alpha_k is the client's own strength of the penalty, and w are the parameters. If
        ``clip_quadratic`` is true or alpha = 0, there is no such part.
        """
        if self.clip_quadratic or self.alpha == 0:
            return {}
        alpha = self._scaled(self.alpha)
        return {name: alpha * value for name, value in self._shared(parameters)}

    def _shared(self, parameters: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Select the shared parameters, which have a penalty."""
        return [(name, value) for name, value in parameters if name in self.start]

    def _scaled(self, penalty: Tensor | float) -> Tensor | float:
        """Turn a penalty of strength alpha into one of the client's own strength alpha_k."""
        return penalty if self.alpha_scaling == "none" else penalty * self.relative_strength

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Add this round's step w_k - w^t to the client's drift. Nothing is sent.

        w_k is the trained model, and w^t is the received one.
        """
        if self.alpha > 0:
            weights = client.weights
            step = {name: weights[name] - self.start[name] for name in self.start}
            memory.update(combine(memory, prefixed("drift", step)))
        return {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Update the population's mean drift, and return ``merged`` plus this drift."""
        if self.alpha == 0:
            return merged
        step = {name: merged[name] - current[name] for name in self.start}
        self.mean_drift = combine(self.mean_drift, step, clients / self.clients.num_with_data)
        return combine(merged, self.mean_drift)
