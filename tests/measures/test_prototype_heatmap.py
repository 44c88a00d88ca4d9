import math

import pytest
import torch
from support.federations import federate
from support.views import after_round
from torch import Tensor

from fedexp.measures.prototypes import prototype_similarity
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200", "rounds=2"]


def trained(*overrides: str) -> Federation:
    federation = federate(*SMALL, *overrides)
    federation.run(2)
    return federation


def compared(federation: Federation) -> tuple[Tensor, int] | None:
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


def test_the_global_head_is_compared() -> None:
    federation = trained()
    found = compared(federation)
    assert found is not None
    similarity, clients = found
    assert clients == 0
    expected = torch.tensor(cosines(federation.server.weights["head.linear.weight"]))
    torch.testing.assert_close(similarity, expected.double())


@pytest.mark.parametrize(
    "method", ["fedper", "fedrep", "local", "fedper personalization.global_model=initial_head"]
)
def test_private_heads_are_compared_in_each_client_and_averaged(method: str) -> None:
    algorithm, *more = method.split()
    federation = trained(f"algorithm={algorithm}", *more)
    found = compared(federation)
    assert found is not None
    similarity, clients = found
    store = federation.store
    heads = [store.model(client)["head.linear.weight"] for client in store.clients_with_model]
    assert clients == len(heads) > 1
    expected = torch.tensor([cosines(head) for head in heads]).mean(dim=0)
    torch.testing.assert_close(similarity, expected.double())


@pytest.mark.parametrize("scored", ["present", "received"])
def test_prototypes_that_predict_are_compared(scored: str) -> None:
    federation = trained("algorithm=fedproto", f"personalization.score_with={scored}")
    found = compared(federation)
    assert found is not None
    similarity, clients = found
    assert clients == 0
    sent = federation.server.broadcast(2).extras["loss"]["prototypes"]
    torch.testing.assert_close(similarity, torch.tensor(cosines(sent)).double())


def test_without_kept_models_there_is_nothing_private_to_compare() -> None:
    off = ["measure.personal=null", "objective=train/loss"]
    assert compared(trained("algorithm=local", *off)) is None
    with_global = trained("algorithm=fedper", "personalization.global_model=initial_head", *off)
    found = compared(with_global)
    assert found is not None
    similarity, _ = found
    initial = with_global.engine.resources.initial["head.linear.weight"]
    torch.testing.assert_close(similarity, torch.tensor(cosines(initial)).double())
