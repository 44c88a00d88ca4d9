"""What a plain PyTorch loop needs to repeat a method: data, cohorts, initial weights, gradients."""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from support.federations import federate

EPOCHS, BATCH, LR = 2, 16, 0.05
SETTING = (
    *("clients.count=5", "clients.per_round=3", "data.subset=200", "partition.beta=0.3"),
    *(f"local.epochs={EPOCHS}", f"local.batch_size={BATCH}", f"optimizer.lr={LR}"),
    *("optimizer.momentum=0", "optimizer.weight_decay=0", "model.hidden=[16]"),
    *("model.feature_dim=8", "measure.personal.every=1000", "measure.prototypes.every=1000"),
)
"""Clients of different sizes, of which a part takes part in each round."""


class PlainLoop:
    """The ingredients of a plain loop, taken from a federation that is never trained."""

    def __init__(self, *overrides: str) -> None:
        self.federation = federate(*SETTING, *overrides)
        self.start = {n: w.clone() for n, w in self.federation.server.weights.items()}
        self._module = self.federation.global_model(0)
        self.samples = [len(each.labels) for each in self.federation.data.clients]

    def cohorts(self, rounds: int) -> Iterator[tuple[int, list[int]]]:
        """(round, its clients)."""
        for round in range(1, rounds + 1):
            yield round, list(self.federation.sampler.select(round))

    def batches(self, round: int, client: int, epochs: int = EPOCHS) -> list[Batch]:
        """The batches of all local steps."""
        resources = self.federation.engine.resources
        message = self.federation.server.broadcast(round)
        data = self.federation.engine.training_data(client, message)
        one_epoch = data.local_batches(round, resources.local.batch_size)
        return [batch for _ in range(epochs) for batch in one_epoch]

    def mean(
        self, models: Mapping[int, Tensors], cohort: Iterable[int], names: Iterable[str]
    ) -> Tensors:
        """The mean of the cohort's models in these weights; samples have equal weights."""
        clients = list(cohort)
        total = sum(self.samples[k] for k in clients)
        shares = {k: self.samples[k] / total for k in clients}
        return {n: torch.stack([p * models[k][n] for k, p in shares.items()]).sum(0) for n in names}

    def gradient(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The gradient of the mean cross-entropy."""
        point = {name: value.detach().requires_grad_() for name, value in weights.items()}
        logits = torch.func.functional_call(self._module, point, (batch[0],))
        found = torch.autograd.grad(F.cross_entropy(logits, batch[1]), list(point.values()))
        return dict(zip(point, found, strict=True))


def assert_same(found: Tensors, expected: Tensors, tolerance: float = 1e-5) -> None:
    """The two have the same names and values."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)
