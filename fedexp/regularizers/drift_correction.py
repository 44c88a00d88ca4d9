"""FedDC: each client stores the sum of its steps, its drift, and corrects its gradients."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import (
    DIVIDES_STEPS,
    DRAWS_REPEATEDLY,
    LOCAL_MOMENTUM,
    NOT_THE_MEAN,
)
from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.regularizers.anchors import Scaling, combine, total
from fedexp.regularizers.control_variates import ControlVariates
from fedexp.regularizers.dynamic import Dynamic

_MOMENTUM = {
    LOCAL_MOMENTUM: "FedDC: with a local optimizer that has momentum training may collapse after "
    "some rounds; use optimizer=sgd_plain"
}
_NOT_THE_COHORTS_MEAN = dict.fromkeys(
    (NOT_THE_MEAN, DRAWS_REPEATEDLY),
    "regularizer.drifts=cohort: the server adds the mean of the cohort's drifts, in which each "
    "client counts once; with this {other} the merged weights are not the same mean of the models",
)


class CorrectedSteps(ControlVariates):
    """Updates g_k for ``estimate=corrected``: g_k <- g_k - g + the round's mean local step.

    ``DriftCorrection`` explains g_k and g. ``correction_scaling`` divides g in this update, too.
    """

    def _expected_step(self, client: Client, memory: Memory) -> Tensors:
        return self._received(client)


class LastSteps(ControlVariates):
    """Updates the g_k of ``DriftCorrection`` for ``estimate=last``: g_k <- the mean local step."""

    def _expected_step(self, client: Client, memory: Memory) -> Tensors:
        return with_prefix("variate", memory)


class DriftCorrection(Dynamic):
    """A penalty that contains the client's drift, and a correction of gradients (FedDC).

    The method is from Gao et al., CVPR 2022. w^t are the weights that local training starts from,
    usually the received ones, and w_k are the weights after it. The penalty on the trained shared
    parameters w is $(alpha/2) ||w + d_k - w^t||^2 + <w, g - g_k>$. The drift d_k of client k is the
    sum of its steps over its rounds: after training, $d_k <- d_k + w_k - w^t$. The server adds the
    mean drift to the mean of the cohort's models. g_k is the client's mean local step in its last
    round, $(w^t - w_k) / (steps * learning rate)$, and g is the mean of g_k over the population.
    (The paper uses the step $w_k - w^t$, which is $-steps * learning rate * g_k$, in place of g_k.)

    The first term and the server work like FedDyn, and the second term works like SCAFFOLD. So the
    remarks on optimizers, aggregators and released tables in ``Dynamic`` and ``ControlVariates``
    apply here, too. ``estimate=corrected`` and ``last`` handle momentum like SCAFFOLD's option II,
    and log one warning if the local optimizer is not SGD. ``estimate=gradient`` is SCAFFOLD's
    option I, which neither the paper nor its implementation has.

    From the second round the message also contains g. The update also contains the change of g_k,
    and with ``drifts=cohort`` the drift d_k.

    $alpha = 0$ switches off all terms, even $<w, g - g_k>$, and gives exactly FedAvg. With any
    $alpha > 0$, however small, the server adds the whole mean drift, and $<w, g - g_k>$ is in the
    loss.

    The authors' code, and its copy in the released code of FedPTR, has ``samples`` for
    ``weighting``, ``alpha_scaling`` and ``correction_scaling``, with ``aggregator=uniform``.

    Args:
        alpha: the penalty's strength.
        estimate: the new g_k. With ``corrected`` (released code) it is g_k - g + the mean local
            step, as in SCAFFOLD. With ``last`` (paper) it is the mean local step. With ``gradient``
            it is the gradient of the client's loss at w^t.
        drifts: the clients whose mean drift the server adds. With ``all`` (released code) they are
            all clients, and the mean drift is zero at the fixed point of training. With ``cohort``
            (paper) the new global model is the mean of w_k + d_k over the cohort. This needs
            ``aggregator=uniform``: the mean of d_k is not weighted. If all clients take part,
            ``all`` and ``cohort`` are equal. Otherwise ``cohort`` has no fixed point.
        weighting: with ``uniform`` clients have equal weights in g. With ``samples`` a client's
            weight is proportional to its number of samples. The aggregator should use the same
            weights, because with ``drifts=all`` its weights apply to the mean drift, too.
        alpha_scaling: with ``samples`` alpha is divided by n_k / mean(n), where n_k is the number
            of samples of client k. With ``none`` all clients have the same alpha.
        correction_scaling: with ``samples`` g is divided by n_k / mean(n), also in the update of
            ``estimate=corrected``. With ``none`` g is never divided.
    """

    unread_if = {
        name: {"alpha": (0,)}
        for name in ("estimate", "drifts", "weighting", "alpha_scaling", "correction_scaling")
    }
    summed = True
    discourages = {**Dynamic.discourages, **_MOMENTUM}

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
        self.traits = self.traits | (self.variates.traits & {DIVIDES_STEPS})
        if drifts == "cohort":  # the server gets the drifts, wherever clients start
            self.discourages = {**_NOT_THE_COHORTS_MEAN, **_MOMENTUM}

    def setup(self, setting: Setting) -> None:
        """Make the buffers of the quadratic term and of the correction of gradients."""
        super().setup(setting)
        self.variates.setup(setting)

    def broadcast(self, round: int) -> Tensors:
        """Send g, the mean of all clients' local steps, from the second round on."""
        return self.variates.broadcast(round)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set this client's initial weights, its drift and its correction of gradients."""
        super().begin(client, message, memory)
        if self.alpha > 0:
            self.variates.begin(client, message, memory)

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar: the quadratic term plus <w, g - g_k>.

        w are the parameters, g_k is the client's mean local step, and g is the mean of all g_k.
        """
        shared = self._shared(parameters)
        gaps = [value + self.drift[name] - self.start[name] for name, value in shared]
        penalty = 0.5 * self.alpha * total([gap.square().sum() for gap in gaps])
        return self._scaled(penalty) + self.variates.forward(shared)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Update the client's mean local step g_k and the client's drift d_k.

        The client sends the change of g_k, and with ``drifts=cohort`` also d_k.
        """
        if self.alpha == 0:
            return {}
        change = self.variates.report(client, memory)
        super().report(client, memory)
        drift = with_prefix("drift", memory) if self.drifts == "cohort" else {}
        return change | prefixed("drift", drift)

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Return the mean of the cohort's models plus the mean drift."""
        merged = self.variates.correct(current, merged, sums, clients)
        if self.drifts == "all":
            return super().correct(current, merged, sums, clients)
        drifts = with_prefix("drift", sums)
        return combine(merged, {n: (s / clients).to(current[n].dtype) for n, s in drifts.items()})

    def server_state(self) -> dict[str, Any]:
        """The mean drift, and g, the mean of all clients' local steps."""
        return super().server_state() | {"variates": self.variates.server_state()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        super().load_server_state(state)
        self.variates.load_server_state(state["variates"])
