"""IFCA: there are k models, and a client trains the one with the smallest loss on its data."""

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.transfer import to_device
from fedexp.personalization.cluster_models import ClusterModels, Weighting, model_of
from fedexp.personalization.mean_loss import ONE_CLASSIFIER, mean_loss


class IFCA(ClusterModels):
    """A client chooses one of k models each round (Ghosh et al., NeurIPS 2020, Alg. 1, option II).

    The server sends all k models. A client computes each model's mean cross-entropy on its training
    data, in eval mode and without augmentation. It trains the model with the smallest value. (If
    several models have this value, it trains the model with the lowest number.) Then it sends the
    trained model and the number of the model. The server averages the models of the clients that
    chose the same number. A model that no client chose does not change. Gradient averaging (option
    I) is not implemented. The models start from different random weights; model 0 has the initial
    weights of FedAvg.

    A client's personal model is the server's current model with the smallest loss on its training
    data. The released code chooses it in this way for FEMNIST; for MNIST and CIFAR-10 it compares
    the losses on the test data.

    Args:
        clusters: k, the number of models.
        common: beginnings of weight names, such as ``backbone.``. Weights with such names are the
            same in all k models and are averaged over all clients (the paper's weight sharing).
            The released code for FEMNIST takes these weights from FedAvg and does not train them.
        weighting: see ``ClusterModels``. The paper's average is ``uniform``, and so is that of the
            released code for MNIST and CIFAR-10. The released code for FEMNIST uses ``samples``.
    """

    forbids = {**ClusterModels.forbids, **ONE_CLASSIFIER}
    saved = ("models",)
    chosen: Tensor

    def __init__(self, clusters: PositiveInt, common: list[str], weighting: Weighting) -> None:
        super().__init__(weighting)
        self.clusters, self.common = clusters, tuple(common)
        if not common:
            self.unread = {"aggregator": "with personalization.common=[]"}
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64), persistent=False)

    def clustered(self, name: str) -> bool:
        """Whether the weight differs between the k models."""
        return not name.startswith(self.common)

    def setup(self, setting: Setting) -> None:
        """Draw the initial weights of the k models except model 0, which is the global model."""
        self._first: Tensors = {}
        self._used = 0
        drawn = map(setting.server.draw_model, range(1, self.clusters))
        self.models = [{n: w for n, w in each.items() if self.clustered(n)} for each in drawn]

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """The k models except model 0, which is in the weights of the message."""
        named = (prefixed(str(number), m) for number, m in enumerate(self.models, start=1))
        return {name: weight for model in named for name, weight in model.items()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Average the models of each cluster."""
        chosen = torch.stack([update.extras["chosen"] for update in updates]).tolist()
        self._used, self._first = len(set(chosen)), {}
        for number in set(chosen):
            members = [u for u, own in zip(updates, chosen, strict=True) if own == number]
            if number == 0:
                self._first = self.average(members, model_of(members[0]))
            else:
                self.models[number - 1] = self.average(members, self.models[number - 1])

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The next global weights: the weights of model 0.

        Weights that are the same in all k models come from the aggregator's result.
        """
        first = self._first or current
        return {n: first[n] if self.clustered(n) else weight for n, weight in merged.items()}

    def metrics(self) -> dict[str, float]:
        """The number of models that at least one client chose."""
        return {"personalization/clusters": self._used}

    # The client's half.

    @torch.no_grad()
    def choose(self, client: Client, message: PartMessage) -> Tensors:
        """Choose the model with the smallest loss on the client's training data."""
        models = [message.weights]
        for number in range(1, self.clusters):
            received = with_prefix(str(number), message.extras)
            models.append({name: to_device(w, client.device) for name, w in received.items()})
        losses = torch.stack([mean_loss(client, client.data, model) for model in models])
        self.chosen.copy_(losses.nan_to_num(nan=torch.inf).argmin())
        return models[int(self.chosen)]

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The number of the chosen model, int64."""
        return {"chosen": self.chosen.clone()}
