"""Metrics of one small run, recomputed by loops in plain Python from its models."""

import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from federations import federate
from torch import Tensor

from fedexp.evaluation.membership import choose


def angle(vectors: list[list[float]]) -> float | None:
    """Mean angle in degrees over pairs; None without a pair."""
    found = []
    for a, b in combinations(vectors, 2):
        cosine = sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))
        found.append(math.degrees(math.acos(max(-1, min(1, cosine)))))
    return sum(found) / len(found) if found else None


def test_metrics_of_a_round() -> None:
    federation = federate(
        *["clients.count=4", "clients.per_round=4", "data.subset=150", "local.epochs=3"],
        *["rounds=1", "head=cosine", "model.feature_dim=6", "partition.beta=0.3"],
        *["evaluation.membership.attack=loss", "evaluation.membership.samples=40"],
    )
    metrics = federation.run_round(1).metrics
    resources = federation.engine.resources
    data = resources.data
    module = resources.load_global(federation.server.broadcast(1)).eval()
    ((inputs, labels),) = data.test.batches(len(data.test))

    # Angles of the global model, over the classes that each client holds and lacks.
    with torch.no_grad():
        z = module.backbone(inputs)
        unit = torch.stack([row / math.hypot(*row.tolist()) for row in z])
    kinds: dict[str, Tensor] = {
        "feature": torch.stack([z[labels == c].mean(dim=0) for c in range(10)]),
        "head_feature": torch.stack([unit[labels == c].mean(dim=0) for c in range(10)]),
        "classifier": module.weights["head.weight"],
    }
    for kind, vectors in kinds.items():
        for name, wanted in (("existing", True), ("missing", False)):
            means = [
                angle([vectors[c].tolist() for c in range(10) if (counts[c] > 0) == wanted])
                for counts in data.class_counts.tolist()
            ]
            measured = [each for each in means if each is not None]
            expected = sum(measured) / len(measured)
            found = metrics[f"geometry/{kind}_angle_global_{name}"]
            assert found == pytest.approx(expected, abs=1e-2), (kind, name)

    # Attack by loss: the share of right answers of the best threshold.
    members, others = choose(data, 40, resources.local.batch_size)
    losses = []
    for samples, index in ((data.train, members), (data.test, others)):
        x, y = samples.gather(torch.from_numpy(index))
        with torch.no_grad():
            losses.append(F.cross_entropy(module(x), y, reduction="none").tolist())
    thresholds = [*losses[0], *losses[1], -1.0]
    right = [
        sum(loss <= t for loss in losses[0]) + sum(loss > t for loss in losses[1])
        for t in thresholds
    ]
    assert metrics["membership/loss_accuracy"] == pytest.approx(max(right) / 80, abs=1 / 80)

    # Personal models on the whole test split.
    accuracies = []
    for client in range(4):
        module.load(resources.store.model(client))
        with torch.no_grad():
            accuracies.append((module(inputs).argmax(dim=1) == labels).float().mean().item())
    assert metrics["personal/accuracy_whole"] == pytest.approx(sum(accuracies) / 4)
