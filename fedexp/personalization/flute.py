"""FLUTE: private heads that are kept near a simplex, and features of a small norm."""

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import LINEAR_HEAD
from fedexp.config.schema import Epochs
from fedexp.contract import Client, Forward, Memory, PartMessage, Phase, Setting, Tensors
from fedexp.personalization.fedper import FedPer
from fedexp.regularizers.neural_collapse import WEIGHT, collapse_distance, held_classes


class FLUTE(FedPer):
    """The private head trains alone, then with the shared body (Liu et al., ICML 2024).

    The loss has the penalty $c ||z||^2$, with c = ``feature_penalty``; it is the mean over the
    features z of a batch. Use ``regularizer=neural_collapse`` for the penalties on the head.
    Between two rounds of a client a gradient step moves its head closer to neural collapse:
    $W <- W - (rate / K) grad D(W)$. D is ``collapse_distance``, and K the number of clients whose
    updates a server step takes.

    This is the paper's method for classification with a network. The formulas are those of the
    released code; the paper's text was not compared. There the heads are sent to the server, which
    takes this step for the mean of D over the cohort. A client's head changes the same if the
    client takes the step itself, so here nothing but the body is sent. As there, a personal model
    is scored before the step. In the released code the feature penalty is the sum over a batch, of
    10 samples by default, and the body is in training mode while the head trains alone. Here it is
    in eval mode then.

    Args:
        head_epochs: epochs of training the head alone, even if ``local.steps`` is set. Head and
            body are then trained for ``local.epochs`` or ``local.steps``.
        feature_penalty: weight of the features' squared norm.
        rate: step size of the head's step between rounds.
    """

    takes_only_merged = True
    takes_tokens = False
    needs = {LINEAR_HEAD: "personalization=flute: needs a linear classifier; use head=linear"}

    def __init__(
        self, head_epochs: Epochs, feature_penalty: NonNegativeFloat, rate: NonNegativeFloat
    ) -> None:
        super().__init__("none")
        self.head_epochs, self.feature_penalty, self.rate = head_epochs, feature_penalty, rate

    def setup(self, setting: Setting) -> None:
        """Compute the step size for one client's head."""
        self._step = self.rate / max(setting.most_updates, 1)  # 0 in an exported model

    def phases(self, epochs: float) -> Sequence[Phase]:
        """A phase for the head, then a phase for head and body."""
        return Phase(self.head_epochs, trainable=("head.",), eval_mode=("backbone.",)), Phase(
            epochs
        )

    @torch.enable_grad()
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Unless this is the client's first round, take a step with the head."""
        if "trained" not in memory:
            return
        weight = client.weights[WEIGHT].clone().requires_grad_()
        distance = collapse_distance(weight, held_classes(client))
        (slope,) = torch.autograd.grad(distance, weight)
        client.load({WEIGHT: weight.detach() - self._step * slope})

    def term(self, batch: Forward) -> Tensor:
        """The penalty on the features, a scalar."""
        return self.feature_penalty * batch.mean(batch.z.square().sum(dim=1))

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Remember that the client has trained. Nothing is sent."""
        memory["trained"] = torch.ones((), dtype=torch.bool, device=client.device)
        return {}
