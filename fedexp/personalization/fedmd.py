"""FedMD: clients learn from the mean of their class scores on public data, and send no weights."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.traits import HEAD_LEAVES_OUT_CLASSES, Need
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.personalization.local import Local

Distance = Callable[[Tensor, Tensor], Tensor]
"""(Scores [B, C], targets) -> a scalar."""

_CHUNK = 1000
"""Number of public samples in one forward pass that is not a training step."""


class FedMD(Local):
    """Clients exchange class scores on public data in place of weights (Li and Wang, 2019).

    The server has some public samples, and sends them to a client once. In its first turn a client
    trains on the public samples and their labels. In each turn it digests: it trains on the public
    samples, so that its class scores, the logits, approach the mean scores of the clients of the
    last cohort. Then follows its local training on its own data, and it sends its scores for the
    public samples. The distance from the mean scores is the mean absolute difference.

    All clients may have different networks (``model=mixed``). Training on public data has the local
    optimizer, with the learning rate of the round; its gradients are not clipped, and the model is
    in eval mode. The public data are drawn from the training data of all clients, where they
    remain. In the paper they are a dataset of their own, of which each round uses a random part,
    and clients train on all their data until convergence before the first exchange. FL-bench has
    the mean squared difference.

    Args:
        samples: number of public samples; each class has the same number, if there are enough.
        pretraining: passes over the labelled public samples in a client's first turn.
        digestion: passes over the public samples and their mean scores in each turn.
        batch_size: public samples in a step.
    """

    summed = True
    takes_tokens = False
    needs = {
        Need.ALL_CLIENTS: "personalization=fedmd: draws its public data from the samples of all "
        "clients at once, which these data lack; take another personalization"
    }
    forbids = {
        HEAD_LEAVES_OUT_CLASSES: "{other}: gives absent classes the score -inf, so that there are "
        "no mean scores for personalization=fedmd"
    }
    saved = ("scores", "holders")

    def __init__(
        self,
        samples: PositiveInt,
        pretraining: NonNegativeInt,
        digestion: NonNegativeInt,
        batch_size: PositiveInt,
    ) -> None:
        super().__init__()
        self.samples, self.batch_size = samples, batch_size
        self.pretraining, self.digestion = pretraining, digestion
        self.scores: Tensor | None = None
        self._public: Tensors = {}

    def setup(self, setting: Setting) -> None:
        """Keep the setting; no client has the public data."""
        self._setting = setting
        self.holders = torch.zeros(setting.num_clients, dtype=torch.bool)

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Train on the public data: in the first turn with labels, then with mean scores."""
        received = message.extras
        stages: list[tuple[Tensor, Distance, int]] = []
        if "inputs" in received:
            memory.update(inputs=received["inputs"], targets=received["targets"])
            stages.append((memory["targets"], F.cross_entropy, self.pretraining))
        if "scores" in received:
            scores = to_device(received["scores"], client.device)  # on the CPU after a resume
            stages.append((scores, F.l1_loss, self.digestion))
        seed, number = self._setting.seed, client.data.client
        generator = torch_generator(seed, "public_batches", client.round, number)
        for targets, loss, epochs in stages:
            orders = [torch.randperm(len(targets), generator=generator) for _ in range(epochs)]
            self._train(client, memory["inputs"], targets, loss, orders)

    def _train(
        self,
        client: Client,
        inputs: Tensor,
        targets: Tensor,
        loss: Distance,
        orders: Sequence[Tensor],
    ) -> None:
        """Train backbone and head on public inputs and targets; one order [n] for each pass."""
        current = client.weights
        names = [n for n in self._setting.model.parameters if n.startswith(("backbone.", "head."))]
        weights = {name: nn.Parameter(current[name].detach().clone()) for name in names}
        optimizer = client.optimizer_for(weights.values())
        for order in orders:
            for batch in torch.split(to_device(order, targets.device), self.batch_size):
                logits = client.logits_with(dict(weights), inputs[batch])
                optimizer.zero_grad()
                loss(logits, targets[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        client.load({name: weight.detach() for name, weight in weights.items()})

    @torch.no_grad()
    def report(self, client: Client, memory: Memory) -> Tensors:
        """The scores [n, C] of the n public samples."""
        chunks = torch.split(memory["inputs"], _CHUNK)
        return {"scores": torch.cat([client.logits_with({}, inputs) for inputs in chunks])}

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """Send the mean scores, after the first round."""
        return {} if self.scores is None else {"scores": self.scores}

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The mean scores, and the public data if the client does not have them."""
        if self.holders[client]:
            return message.extras
        if not self._public:
            draw = self._setting.server.draw_samples
            inputs, targets = draw("public_data", self.samples, True)
            self._public = {"inputs": inputs, "targets": targets}
        return message.extras | self._public

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Record which clients have the public data."""
        self.holders[[update.client for update in updates]] = True

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Compute the mean scores of the cohort."""
        self.scores = (sums["scores"] / clients).float()
        return merged
