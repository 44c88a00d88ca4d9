"""kNN-Per against plain numpy, in all engines, and with other sockets."""

import math

import numpy as np
import pytest
import torch
from support.federations import equal, federate
from support.small_federations import SMALL, alike, personal, personalized, train
from torch import Tensor

from fedexp.personalization.knn_per import KNNPer
from fedexp.runtime.federation import Federation


def test_a_vote_by_hand() -> None:
    """Three neighbours at distances 0, 1, 2, of which two vote; a padded row is the nearest."""
    part = KNNPer(0.25, 2, "euclidean", 1.0)
    part.register_buffer("store_z", torch.tensor([[2.0], [0.0], [1.0], [0.0]]))
    part.register_buffer("store_y", torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 0]]))
    part.register_buffer("is_stored", torch.tensor([True, True, True, False]))
    found = part.personalize(torch.zeros(1, 1), torch.tensor([[0.0, math.log(3)]])).exp()
    vote = 1 / (1 + math.exp(-1))
    expected = [0.25 * vote + 0.75 * 0.25, 0.25 * (1 - vote) + 0.75 * 0.75]
    torch.testing.assert_close(found, torch.tensor([expected]))
    part.distance, part.scale, part.share = "gaussian", 0.5, 1.0
    found = part.personalize(torch.tensor([[0.5 + 1]]), torch.zeros(1, 2)).exp()
    # squared distances: 0.25 to rows 0 (class 0) and 2 (class 1), divided by 1 * 0.5
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5]]))


def plain(federation: Federation, round: int, client: int, share: float) -> np.ndarray:
    """The mixed prediction [n, C] on the test split."""
    data = federation.data
    model = federation.engine.resources.load_global(federation.server.broadcast(round)).eval()

    def outputs(inputs: Tensor) -> list[np.ndarray]:
        with torch.no_grad():
            return [each.double().numpy() for each in model.outputs(inputs)]

    stored, _ = outputs(data.clients[client].inputs(torch.arange(data.clients[client].num_samples)))
    labels = data.clients[client].labels.numpy()
    z, logits = outputs(next(iter(data.test.batches(10_000)))[0])
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mixed = (1 - share) * softmax
    for row, each in enumerate(z):
        distances = np.linalg.norm(stored - each, axis=1)
        nearest = np.argsort(distances)[:10]
        weights = np.exp(-distances[nearest])
        for label, weight in zip(labels[nearest], weights, strict=True):
            mixed[row, label] += share * weight / weights.sum()
    return mixed


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_personal_predictions_equal_plain_numpy(engine: str) -> None:
    """Under the present global model, also for a client with fewer than k samples."""
    federation = federate(
        *("algorithm=knn_per", "clients.count=6", "clients.per_round=6", "data.subset=150"),
        *("local.epochs=1", "partition.beta=0.1", "personalization.share=0.8"),
        f"engine={engine}",
    )
    sizes = [client.num_samples for client in federation.data.clients]
    clients = [int(np.argmin(sizes)), int(np.argmax(sizes))]
    assert sizes[clients[0]] < 10 < sizes[clients[1]]
    for round in (1, 2):
        train(federation, round, clients)
    found = personal(federation, 2)
    labels = federation.data.test.labels.numpy()
    for client in clients:
        mixed = plain(federation, 2, client, 0.8)
        assert found[client].loss == pytest.approx(
            -np.log(mixed[np.arange(len(labels)), labels]).mean(), rel=1e-4
        )
        correct = mixed.argmax(axis=1) == labels
        assert (found[client].correct.numpy() != correct).sum() <= 1  # ties may round


def test_without_a_vote_it_is_the_global_model() -> None:
    federation = personalized("knn_per", "personalization.share=0")
    train(federation, 1)
    found = personal(federation, 1)[0]
    federation.engine.resources.load_global(federation.server.broadcast(1))
    logits = federation.module.eval()(next(iter(federation.data.test.batches(10_000)))[0])
    correct = logits.argmax(dim=1) == federation.data.test.labels
    assert torch.equal(found.correct, correct)


def test_the_largest_client_may_be_held_out() -> None:
    words = ["clients.count=5", "clients.per_round=2", "clients.held_out=0.6", "partition.beta=0.1"]
    federation = federate(*SMALL, "algorithm=knn_per", *words, "seed=1", "rounds=1")
    held = [client.num_samples for client in federation.data.held_out_clients.values()]
    assert max(held) > federation.data.sizes.max()
    assert "held_out/tuned_accuracy_local" in federation.run_round(1).metrics


def test_the_federation_is_that_of_fedavg() -> None:
    knn, plain_average = personalized("knn_per"), personalized("none")
    for round in (1, 2):
        records = [each.run_round(round).metrics for each in (knn, plain_average)]
        scores = personal(knn, round), personal(knn, round)
        assert alike(*scores)
        for key in ("train/loss", "cost/upload_bytes", "cost/download_bytes"):
            assert records[0][key] == records[1][key]
    assert equal(knn.server.weights, plain_average.server.weights)
