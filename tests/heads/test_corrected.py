"""FedGC: rows of holders and the correction by hand, by autograd, and in a round."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate, take_step
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features
from support.small_federations import SMALL
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.heads.corrected import correction, rows_of_holders

WEIGHT = "head.linear.weight"


def test_rows_of_holders_by_hand() -> None:
    current = torch.tensor([[9.0], [9.0], [9.0]])
    rows = torch.tensor([[[1.0], [2.0], [3.0]], [[5.0], [6.0], [7.0]]])
    shares = torch.tensor([[3.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    assert rows_of_holders(current, rows, shares).tolist() == [[2.0], [2.0], [9.0]]


def test_the_correction_by_hand() -> None:
    """Two clients with a class each, and a class that nobody holds.

    w_0 = (1, 0) and w_1 = (0, 2). With w_0 the logits are 1 and 0, with w_1 they are 4 and 0.
    """
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]])
    holds = torch.tensor([[True, False, False], [False, True, False]])
    p, q = 1 / (1 + math.exp(1)), 1 / (1 + math.exp(4))  # of the other class
    expected = torch.tensor([[-p, 2 * q], [p, -2 * q], [0.0, 0.0]])
    torch.testing.assert_close(correction(rows, holds), expected)


def test_classes_of_one_client_are_not_compared() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert not correction(rows, torch.tensor([[True, True], [True, False]])).any()


def test_the_correction_is_the_gradient_of_the_regularizer() -> None:
    rows = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    holds = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool)
    w = rows.clone().requires_grad_()
    others = {0: [2, 3], 1: [2, 3], 2: [0, 1], 3: [0, 1]}
    total = torch.zeros((), dtype=torch.float64)
    for c, classes in others.items():
        own = (rows[c] @ w[c]).exp()
        total = total - (own / (own + sum((rows[c] @ w[j]).exp() for j in classes))).log()
    (expected,) = torch.autograd.grad(total, w)
    torch.testing.assert_close(correction(rows, holds), expected)


def test_a_round_by_hand() -> None:
    """Client 1 is drawn twice."""
    words = ["partition=shards", "partition.classes_per_client=6", "head.rate=0.1"]
    federation = federate(*SMALL, "algorithm=fedgc", *words)
    current = federation.server.weights[WEIGHT].clone()
    updates = list(federation.engine.train([0, 1, 1], federation.server.broadcast(1)))
    take_step(federation.server, updates)
    expected, counts = torch.zeros(10, 64), torch.zeros(10)
    holds = torch.zeros(2, 10, dtype=torch.bool)
    for update in updates:
        for c in update.extras["head"]["holds"].nonzero().flatten():
            weight = update.num_samples * (1, 2)[update.client]
            expected[c] += weight * update.weights[WEIGHT][c]
            counts[c] += weight
            holds[update.client, c] = True
    expected = torch.where(
        (counts > 0).unsqueeze(1), expected / counts.clamp(min=1).unsqueeze(1), current
    )
    expected = expected - 0.1 * correction(expected, holds)
    torch.testing.assert_close(federation.server.weights[WEIGHT], expected)
    assert correction(expected, holds).any()


def test_two_rounds_by_plain_pytorch() -> None:
    """Clients learn their own classes; the server descends on the regularizer by autograd."""
    words = ["algorithm=fedgc", "head.rate=0.2"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    weights, of = loop.start, [set(c.labels.tolist()) for c in loop.federation.data.clients]
    compared = 0
    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        models = {}
        for client in cohort:
            lacks = [c not in of[client] for c in range(10)]

            def loss(w: Tensors, batch: Batch, _: int, lacks: list[bool] = lacks) -> Tensor:
                logits = features(w, batch[0]) @ w[WEIGHT].T
                return F.cross_entropy(logits.masked_fill(torch.tensor(lacks), -1e9), batch[1])

            models[client] = descend(weights, loop.batches(round, client), loss)
        rows = weights[WEIGHT].clone()
        held = set().union(*(of[client] for client in cohort))
        for c in held:
            holders = {k: {"row": models[k][WEIGHT][c]} for k in cohort if c in of[k]}
            rows[c] = loop.mean(holders, holders, ["row"])["row"]
        w = rows.clone().requires_grad_()
        total = torch.zeros(())
        for c in held:
            others = [j for j in held if not any({c, j} <= of[client] for client in cohort)]
            compared += len(others)
            own, apart = (rows[c] @ w[c]).exp(), (w[others] @ rows[c]).exp().sum()
            total = total - (own / (own + apart)).log()
        (slope,) = torch.autograd.grad(total, w)
        weights = loop.mean(models, cohort, weights) | {WEIGHT: rows - 0.2 * slope}
        assert_same(federation.server.weights, weights)
    assert compared


def test_its_loss_leaves_the_rows_of_other_classes() -> None:
    words = ["optimizer.weight_decay=0", "partition=shards", "partition.classes_per_client=3"]
    federation = federate(*SMALL, "algorithm=fedgc", *words)
    before = federation.server.weights[WEIGHT].clone()
    (update,) = federation.engine.train([1], federation.server.broadcast(1))
    moved = (update.weights[WEIGHT] != before).any(dim=1)
    assert moved.tolist() == update.extras["head"]["holds"].tolist()


def test_a_private_head_and_other_means_are_refused() -> None:
    with pytest.raises(InputError, match="head=corrected: the server corrects the classifier"):
        federate("head=corrected", "personalization=fedper")
    with pytest.raises(InputError, match="aggregator: would not act on the rows"):
        federate("head=corrected", "aggregator=median")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=fedgc"], rounds=1)
