"""The mean of the last two global models against one that is computed from the rounds."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from torch.func import functional_call

from fedexp.measures.last_two import mean_of
from fedexp.testing import check_measure


def test_the_mean_of_the_last_two_models_is_scored() -> None:
    federation = federate("algorithm=fedexp", "data.subset=300")
    ((inputs, labels),) = federation.data.test.batches(10_000)
    before = None
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        newest = {n: w.clone() for n, w in federation.server.weights.items()}
        scored = newest if before is None else {n: (before[n] + w) / 2 for n, w in newest.items()}
        with torch.no_grad():
            logits = functional_call(federation.global_model(round), scored, (inputs,))
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        assert metrics["global/accuracy_last_two"] == pytest.approx(accuracy)
        loss = F.cross_entropy(logits, labels).item()
        assert metrics["global/loss_last_two"] == pytest.approx(loss, rel=1e-4)
        before = newest
    assert metrics["global/loss_last_two"] != pytest.approx(metrics["global/loss"], rel=1e-3)


def test_integers_are_the_newest() -> None:
    before = {"w": torch.tensor([1.0]), "n": torch.tensor(3)}
    newest = {"w": torch.tensor([4.0]), "n": torch.tensor(8)}
    mean = mean_of(before, newest)
    assert (mean["w"].item(), mean["n"].item()) == (2.5, 8)


@pytest.mark.slow
def test_the_contract() -> None:
    check_measure("algorithm=fedexp")
