import math

import pytest
import torch
from support.federations import federate
from support.views import after_round
from torch import Tensor

from fedexp.measures.prototypes import (
    ClassSimilarity,
    pairwise_similarity,
    prototype_similarity,
)
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200", "rounds=2"]


def trained(*overrides: str) -> Federation:
    federation = federate(*SMALL, *overrides)
    federation.run(2)
    return federation


def compared(federation: Federation) -> ClassSimilarity | None:
    return prototype_similarity(after_round(federation, 2))


def cosines(vectors: Tensor) -> list[list[float]]:
    """One pair after another, in plain Python."""
    rows = vectors.double().tolist()
    lengths = [math.sqrt(sum(x * x for x in row)) for row in rows]
    return [
        [
            sum(x * y for x, y in zip(a, b, strict=True)) / (m * n) if m and n else 0.0
            for b, n in zip(rows, lengths, strict=True)
        ]
        for a, m in zip(rows, lengths, strict=True)
    ]


def test_cosines_and_angles() -> None:
    found = pairwise_similarity(torch.tensor([[3.0, 0.0], [-2.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    half = 2**-0.5
    expected = [[1, -1, half, 0], [-1, 1, -half, 0], [half, -half, 1, 0], [0, 0, 0, 0]]
    angles = [[0, 180, 45, 90], [180, 0, 135, 90], [45, 135, 0, 90], [90, 90, 90, 90]]
    torch.testing.assert_close(found.cosines, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(
        found.angles, torch.tensor(angles, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_the_global_head_is_compared() -> None:
    federation = trained()
    found = compared(federation)
    assert found is not None
    assert found.clients == 0
    expected = torch.tensor(cosines(federation.server.weights["head.linear.weight"]))
    torch.testing.assert_close(found.cosines, expected.double())


@pytest.mark.parametrize(
    "method", ["fedper", "fedrep", "local", "fedper personalization.global_model=initial_head"]
)
def test_private_heads_are_compared_in_each_client_and_averaged(method: str) -> None:
    algorithm, *more = method.split()
    federation = trained(f"algorithm={algorithm}", *more)
    found = compared(federation)
    assert found is not None
    store = federation.store
    heads = [store.model(client)["head.linear.weight"] for client in store.clients_with_model]
    assert found.clients == len(heads) > 1
    expected = torch.tensor([cosines(head) for head in heads]).mean(dim=0)
    torch.testing.assert_close(found.cosines, expected.double())
    angles = torch.tensor([cosines(head) for head in heads]).double().clamp(-1, 1).arccos()
    torch.testing.assert_close(
        found.angles, angles.rad2deg().mean(dim=0), atol=0.1, rtol=0
    )  # arccos is steep near 1


@pytest.mark.parametrize("scored", ["present", "received"])
def test_prototypes_that_predict_are_compared(scored: str) -> None:
    federation = trained("algorithm=fedproto", f"personalization.score_with={scored}")
    found = compared(federation)
    assert found is not None
    assert found.clients == 0
    sent = federation.server.broadcast(2).extras["loss"]["prototypes"]
    torch.testing.assert_close(found.cosines, torch.tensor(cosines(sent)).double())


def test_without_kept_models_there_is_nothing_private_to_compare() -> None:
    off = ["measure.personal=null", "objective=train/loss"]
    assert compared(trained("algorithm=local", *off)) is None
    with_global = trained("algorithm=fedper", "personalization.global_model=initial_head", *off)
    found = compared(with_global)
    assert found is not None
    initial = with_global.engine.resources.initial["head.linear.weight"]
    torch.testing.assert_close(found.cosines, torch.tensor(cosines(initial)).double())
