"""FedADMM: each client minimises an augmented Lagrangian of its loss."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import PositiveFloat

from fedexp.config.compatibility.traits import (
    DRAWS_REPEATEDLY,
    NOT_THE_MEAN,
    OTHER_START,
    OTHER_STARTS,
    SENDS_OTHER,
)
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.regularizers.anchors import combine
from fedexp.regularizers.dynamic import Dynamic


class AugmentedLagrangian(Dynamic):
    """The penalty $<y_k, w - w^t> + (rho/2) ||w - w^t||^2$ on trained shared parameters (FedADMM).

    The method is from Gong, Li and Freris, ICDE 2022. With ``start=reset`` the penalty, the dual
    variables, the updates and the server's step agree with the released code. The paper's text was
    not compared, so it is open which ``start`` and which ``eta`` the paper itself has.

    w^t is the global model. Client k stores its latest model w_k and its dual variable y_k, which
    is 0 at first. The client trains a new w_k and updates

        $y_k <- y_k + rho (w_k - w^t)$.

    Its augmented model is $z_k = w_k + y_k / rho$. The client sends w^t plus the change of z_k, so
    an update has the size of one model, as in FedAvg. The server adds eta times the cohort's mean
    change to the global model. With ``eta=participation``, eta is $|cohort| / N$, where N is the
    number of clients that have data. The global model is then the mean of the z_k of all clients.
    At the fixed point of training every w_k equals w^t, and the sum of all y_k is zero. So the
    fixed point is the optimum of the mean of all clients' objectives. With $eta = 1$ and small
    cohorts the fixed point is the optimum of no particular objective.

    ``Dynamic`` (FedDyn) has the same local objective, with $alpha = rho$ and the drift $y_k / rho$.
    It differs in three points: FedDyn starts each local training from w^t, sends w_k, and adds the
    mean drift of the population to the mean of the cohort's models.

    A client's personal model is w_k. Before the client's first turn w_k is the initial global
    model. Therefore, unless ``start=reset``, the server adds the initial global model to the
    message for a client whose update has not yet been accepted, from the second round on. This
    doubles the download of the client's first turn. Buffers are handled as in FedAvg: clients start
    from the global buffers, and the server averages the clients' buffers.

    Args:
        rho: the penalty's strength.
        eta: step size of the server, or ``participation``.
        start: where local training starts. With ``local`` it starts at w_k, with ``global`` at w^t.
            With ``reset`` (released code) it starts at w^t, and w^t also replaces the stored w_k.
            The change of z_k is then 2 (w_k - w^t), and the fixed point is the optimum of no
            particular objective.
    """

    unread_if = {}
    takes_only_merged = True
    saved = ("initial", "met")
    discourages: Mapping[str, str] = {
        NOT_THE_MEAN: "FedADMM: the server expects the merged weights to be the mean of the "
        "cohort's; with this {other} the step is another; take another {other}; "
        "aggregator=uniform fits",
        DRAWS_REPEATEDLY: "FedADMM: a client changes its z_k once a round, but the server counts a "
        "client's change each time that {other} draws it; use sampler=random",
        SENDS_OTHER: "FedADMM: a client's z_k has its trained weights; with this {other} it sends "
        "other weights; the global model is then not the mean of all z_k",
        **dict.fromkeys(
            OTHER_STARTS,
            "FedADMM: the server adds the change of z_k to the global weights; this {other} may "
            "start clients from other weights; the sum is then not the mean of all z_k",
        ),
    }

    def __init__(
        self,
        rho: PositiveFloat,
        eta: PositiveFloat | Literal["participation"],
        start: Literal["local", "global", "reset"],
    ) -> None:
        super().__init__(rho, "none", clip_quadratic=True)
        self.eta, self.is_warm = eta, start == "local"
        self.keeps_model = start != "reset"
        if self.keeps_model:
            # Also with ``global``, a client sends more than its step from w^t: w_k plus the change
            # of its stored model.
            self.traits = self.traits | {OTHER_START}

    def setup(self, setting: Setting) -> None:
        """Make the buffers of the penalty, and record that no client has trained yet."""
        super().setup(setting)
        self.initial: Tensors = {}
        self.met = torch.zeros(setting.num_clients, dtype=torch.bool)

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The initial global model, for a client that has no stored model."""
        return {} if self.met[client] else prefixed("initial", self.initial)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the buffers of the received model w^t and of the drift y_k / rho.

        y_k is the client's dual variable. With ``start=local`` also load the client's stored model.
        """
        super().begin(client, message, memory)
        if self.keeps_model:
            first = with_prefix("initial", message.extras) or message.weights
            own = with_prefix("model", memory) or {name: first[name] for name in self.start}
            memory.update(prefixed("model", own))
            if self.is_warm:
                client.load(own)

    def upload(self, client: Client, weights: Tensors, memory: Memory) -> Tensors:
        """Send the global model plus the change of this client's z_k, and store w_k.

        w_k is the trained model, y_k the dual variable, and z_k = w_k + y_k / rho the augmented
        model.
        """
        before = with_prefix("model", memory)
        trained = {name: weights[name] for name in self.start}
        if self.keeps_model:
            memory.update(prefixed("model", trained))
        sent = {
            name: value + (value - (before[name] if self.keeps_model else self.start[name]))
            for name, value in trained.items()
        }
        return weights | sent

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Record which clients have taken part."""
        self.met[[update.client for update in updates]] = True

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Return the global model plus eta times the mean change of the augmented models."""
        if self.keeps_model and not self.initial:
            self.initial = {name: current[name] for name in self.start}
        eta = clients / self.clients.num_with_data if self.eta == "participation" else self.eta
        change = {name: merged[name] - current[name] for name in self.start}
        return combine(merged, change, eta - 1)
