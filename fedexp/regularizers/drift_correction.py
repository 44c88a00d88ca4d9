"""FedDC: stores each client's drift apart from its local model, and corrects gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.regularizers.anchors import Scaling, combine, prefixed, total, with_prefix
from fedexp.regularizers.control_variates import ControlVariates
from fedexp.regularizers.dynamic import Dynamic


class CorrectedSteps(ControlVariates):
    """g_k <- g_k - g + the mean step; ``correction_scaling`` applies to g (``DriftCorrection``)."""

    def _expected_step(self, client: Client, memory: Memory) -> Tensors:
        return self._received(client)


class LastSteps(ControlVariates):
    """g_k <- the client's mean local step in this round; see ``DriftCorrection``."""

    def _expected_step(self, client: Client, memory: Memory) -> Tensors:
        return with_prefix("variate", memory)


class DriftCorrection(Dynamic):
    """(alpha/2) ||w + d_k - w^t||^2 + <w, g - g_k> over the trained shared parameters (FedDC).

    Gao et al., CVPR 2022. w^t are the received global weights, w_k the weights after local
    training. The drift of client k is the sum of its steps, d_k <- d_k + w_k - w^t. The server adds
    the mean drift to the mean of the cohort's models. g_k is the client's mean local step in its
    last round, (w^t - w_k) / (steps * learning rate), and g is the mean of g_k over the population.
    (The paper uses -g_k * steps * learning rate in place of g_k, so its sign is opposite.) The
    first term and the server work like FedDyn, the second term like SCAFFOLD: the remarks on
    optimizers, aggregators and released tables in ``Dynamic`` and ``ControlVariates`` apply here
    too.

    ``estimate=corrected`` and ``last`` handle momentum like SCAFFOLD's option II, and warn once if
    the local optimizer is not SGD. The paper and its implementation do not have ``gradient``,
    SCAFFOLD's option I.

    Traffic: from the second round the message contains g. The update contains the change of g_k,
    and d_k with ``drifts=cohort``.

    alpha = 0 switches off all terms, also g - g_k, and gives exactly FedAvg. With a small alpha > 0
    the drifts and g - g_k remain.

    The implementation that FedPTR's authors released as a baseline has ``samples`` for
    ``weighting``, ``alpha_scaling`` and ``correction_scaling``, with ``aggregator=uniform``.

    Args:
        alpha: the penalty's strength.
        estimate: the new g_k. ``corrected`` (released code): g_k - g + the mean step, as in
            SCAFFOLD; ``last`` (paper): the mean step; ``gradient``: the gradient at w^t.
        drifts: the clients whose mean drift the server adds. ``all`` (released code): the mean is
            zero at the fixed point. ``cohort`` (paper): the new global model is the mean of
            w_k + d_k. Both are equal if all clients take part; if not, ``cohort`` has no fixed
            point.
        weighting: whether clients have equal weights in g (``uniform``) or weights proportional to
            their samples (``samples``). The aggregator should use the same weights: its weights
            apply to the mean drift of ``all``, too.
        alpha_scaling: see ``Dynamic``.
        correction_scaling: ``samples`` divides g by n_k / mean(n), also in ``corrected``.
    """

    summed = True

    def __init__(
        self,
        alpha: NonNegativeFloat,
        estimate: Literal["corrected", "last", "gradient"],
        drifts: Literal["all", "cohort"],
        weighting: Literal["uniform", "samples"],
        alpha_scaling: Scaling,
        correction_scaling: Scaling,
    ) -> None:
        super().__init__(alpha, alpha_scaling, clip_quadratic=True)
        kind = LastSteps if estimate == "last" else CorrectedSteps
        source: Literal["steps", "gradient"] = "gradient" if estimate == "gradient" else "steps"
        self.variates = kind(weighting, source, correction_scaling)
        self.drifts = drifts
        self.forbids = self.variates.forbids
        if drifts == "cohort":  # clients send their drifts
            self.discourages = {}

    def setup(self, setting: Setting) -> None:
        """Make the buffers of both terms."""
        super().setup(setting)
        self.variates.setup(setting)

    def broadcast(self, round: int) -> Tensors:
        """g, from the second round."""
        return self.variates.broadcast(round)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set this client's initial weights, its drift and its correction of gradients."""
        super().begin(client, message, memory)
        if self.alpha > 0:
            self.variates.begin(client, message, memory)

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty and the linear term, a scalar."""
        shared = [(name, value) for name, value in parameters if name in self.start]
        gaps = [value + self.drift[name] - self.start[name] for name, value in shared]
        penalty = 0.5 * self.alpha * total([gap.square().sum() for gap in gaps])
        return self._scaled(penalty) + self.variates.forward(shared)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The change of g_k; with ``drifts=cohort`` also the drift."""
        if self.alpha == 0:
            return {}
        change = self.variates.report(client, memory)
        super().report(client, memory)
        drift = with_prefix("drift", memory) if self.drifts == "cohort" else {}
        return change | prefixed("drift", drift)

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The mean of the cohort's models plus a mean of drifts."""
        merged = self.variates.correct(current, merged, sums, clients)
        if self.drifts == "all":
            return super().correct(current, merged, sums, clients)
        drifts = with_prefix("drift", sums)
        return combine(merged, {n: (s / clients).to(current[n].dtype) for n, s in drifts.items()})

    def server_state(self) -> dict[str, Any]:
        """The mean drift and g."""
        return super().server_state() | {"variates": self.variates.server_state()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self.variates.load_server_state(state["variates"])
