"""FedCurv: a pull to other clients' models, weighted by these clients' Fisher information."""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import ACTS_ON_SHARED
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Regularizer, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.regularizers.anchors import Anchors, combine, total
from fedexp.regularizers.fisher import diagonal_fisher


class Curvature(Regularizer):
    """A pull to the other clients' models, weighted by their Fisher information (FedCurv).

    The penalty is $lam * sum_j (w - w_j)^T diag(F_j) (w - w_j)$ over the other clients j (Shoham et
    al., 2019, Eq. 4). F_j is the diagonal empirical Fisher information of client j at its trained
    weights w_j (``diagonal_fisher``). Private parameters have no penalty.

    After training, client j sends F_j and $F_j w_j$. The server sends each client the sums of F_j
    and of $F_j w_j$ over the other clients of the last cohort whose updates were used. So updates
    are three times as large as with FedAvg. The same holds for messages from the second round on.
    In the first round the penalty is 0. The server discards the F_j of older rounds.

    The code completes the square. With $A = sum_j F_j$ and $m = (sum_j F_j w_j) / A$, elementwise,
    the penalty is $lam * sum A (w - m)^2$, summed over the parameters' elements, plus a constant.
    The logged loss does not include the constant.

    Gradient steps with learning rate r diverge for an element of w with $2 r lam A > 2$. A grows
    with the number of clients in the cohort: choose a smaller lam for a larger cohort, or clip
    gradients.

    Args:
        lam: lambda, the strength of the pull. With 0 the method is exactly FedAvg.
        batch_size: number of samples whose gradients are computed together. It does not change the
            result.
    """

    unread_if = {"batch_size": {"lam": (0,)}}
    takes_tokens = False
    traits = frozenset({ACTS_ON_SHARED})
    saved = ("terms",)

    def __init__(self, lam: NonNegativeFloat, batch_size: PositiveInt) -> None:
        super().__init__()
        self.lam, self.batch_size = lam, batch_size
        self.terms: dict[int, Tensors] = {}
        self.sums: Tensors = {}

    def setup(self, setting: Setting) -> None:
        """Make buffers for the other clients' Fisher sum A and their weighted mean model m."""
        shapes = setting.model.shared_parameters
        self.strength, self.center = Anchors(shapes), Anchors(shapes)

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The sums of F_j and F_j w_j over the other clients j of the last cohort.

        F_j is the Fisher information of client j at its trained weights w_j.
        """
        others = combine(self.sums, self.terms.get(client, {}), scale=-1)
        return {name: value.float() for name, value in others.items()}

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the other clients' Fisher sum A and their weighted mean model m.

        If the message has no sums, A and m are 0.
        """
        strength = with_prefix("fisher", message.extras)
        weighted = with_prefix("weighted", message.extras)
        strength = {name: a.clamp(min=0) for name, a in strength.items()}  # rounding may give < 0
        self.strength.fill(strength)
        # Where A is 0, the penalty ignores m. The quotient would be 0 / 0, so m is set to 0.
        self.center.fill({n: (weighted[n] / a).where(a > 0, 0) for n, a in strength.items()})

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar."""
        return self.lam * total(
            [
                (self.strength[name] * (value - self.center[name]).square()).sum()
                for name, value in parameters
                if name in self.strength
            ]
        )

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The client's Fisher information F_k, and F_k w_k with the trained weights w_k."""
        if self.lam == 0:
            return {}
        weights = {name: client.weights[name].detach() for name in self.strength}
        fisher = diagonal_fisher(client, weights, self.batch_size)
        products = {name: value * weights[name] for name, value in fisher.items()}
        return prefixed("fisher", fisher) | prefixed("weighted", products)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Replace the stored Fisher information and products F_k w_k by this round's."""
        self._keep({update.client: dict(update.extras) for update in updates})

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Restore the stored Fisher information and products, and compute their sums."""
        super().load_server_state(state)
        self._keep(self.terms)

    def _keep(self, terms: dict[int, Tensors]) -> None:
        """Store each client's F_k and F_k w_k, and their float64 sums over the clients.

        The terms are added in the order of the client numbers.
        """
        self.terms, self.sums = terms, {}
        for client in sorted(terms):
            doubled = {name: value.double() for name, value in terms[client].items()}
            self.sums = combine(self.sums, doubled)
