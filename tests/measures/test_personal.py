import pytest
import torch
from federations import federate


def test_accuracies_of_a_round_by_a_loop_over_clients() -> None:
    federation = federate(
        *["clients.count=4", "clients.per_round=4", "data.subset=150", "local.epochs=3"],
        *["rounds=1", "head=cosine", "model.feature_dim=6", "partition.beta=0.3"],
    )
    metrics = federation.run_round(1).metrics
    data, module = federation.data, federation.global_model(1)
    ((inputs, labels),) = data.test.batches(len(data.test))
    accuracies = []
    for client in range(4):
        module.load(federation.store.model(client))
        with torch.no_grad():
            accuracies.append((module(inputs).argmax(dim=1) == labels).float().mean().item())
    assert metrics["personal/accuracy_whole"] == pytest.approx(sum(accuracies) / 4)
