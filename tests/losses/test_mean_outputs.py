"""FD: the teacher and the loss by hand, and what clients send, against plain numpy."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, begin_client, federate, take_step
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features, logits
from support.small_federations import SMALL, copy
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.sockets import Phase
from fedexp.losses.mean_outputs import MeanOutputs, others_mean, soft_cross_entropy
from fedexp.testing import check_part


def test_the_mean_of_the_others_by_hand() -> None:
    # Class 0: the client and two others; class 1: the client alone; class 2: one other client.
    sums = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    own = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    holders, is_in = torch.tensor([3.0, 1.0, 1.0]), torch.tensor([True, True, False])
    means, known = others_mean(sums, holders, own, is_in)
    assert means.tolist() == [[0.5, 0.5, 0], [0, 0, 0], [0.5, 0, 0.5]]
    assert known.tolist() == [True, False, True]


def test_the_soft_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, -math.inf]])
    teacher = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    expected = 0.5 * math.log(4) + 0.5 * math.log(4 / 3)
    assert soft_cross_entropy(logits, teacher).tolist() == pytest.approx([expected, 0])


def test_the_loss_is_the_weighted_sum_over_known_classes() -> None:
    loss = MeanOutputs(0.3)
    loss.register_buffer("teacher", torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    loss.register_buffer("known", torch.tensor([1.0, 0.0]))
    logits, y = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]]), torch.tensor([0, 1])
    taught = 0.5 * math.log(4) + 0.5 * math.log(4 / 3)
    expected = (math.log(4) + 0.3 * taught + math.log(2)) / 2
    found = loss(Forward(torch.zeros(2, 1), logits, y))
    assert found.item() == pytest.approx(expected)


def test_the_second_round_has_the_others_as_teachers() -> None:
    federation = federate(*SMALL, "algorithm=feddistill", "partition.beta=0.2")
    cohort = [0, 1, 2]
    updates = {u.client: u for u in federation.engine.train(cohort, federation.server.broadcast(1))}
    take_step(federation.server, updates.values())
    reports = {client: update.extras["loss"] for client, update in updates.items()}
    message = federation.server.broadcast(2)
    for client in range(4):
        loss: Any = begin_client(federation.engine, client, message).loss
        others = [reports[each] for each in cohort if each != client]
        for c in range(10):
            held = [r["outputs"][c].numpy() for r in others if r["holds"][c]]
            assert loss.known[c] == bool(held)
            expected = np.mean(held, axis=0) if held else np.zeros(10)
            assert np.allclose(loss.teacher[c].numpy(), expected, atol=1e-6)


def test_two_rounds_by_plain_pytorch() -> None:
    """Own models with two cross-entropies, and the means of their predictions in all steps."""
    words = ["algorithm=feddistill", "loss.gamma=2"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    models = dict.fromkeys(range(5), copy(loop.federation.engine.resources.initial))
    means: dict[int, dict[int, Tensor]] = {}  # client -> class -> mean predictions
    taught = 0
    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        sent = {}
        for client in cohort:
            others = [own for other, own in means.items() if other != client]
            teachers = {
                c: torch.stack(held).mean(dim=0)
                for c in range(10)
                if (held := [own[c] for own in others if c in own])
            }
            seen: dict[int, list[Tensor]] = {}

            def loss(
                w: Tensors, batch: Batch, _: int, teachers: Any = teachers, seen: Any = seen
            ) -> Tensor:
                found = logits(w, features(w, batch[0]))
                total = F.cross_entropy(found, batch[1], reduction="sum")
                for row, c in zip(found, batch[1].tolist(), strict=True):
                    seen.setdefault(c, []).append(row.detach().softmax(dim=0))
                    if c in teachers:
                        total = total - 2 * (teachers[c] * row.log_softmax(dim=0)).sum()
                return total / len(found)

            models[client] = descend(models[client], loop.batches(round, client), loss)
            assert_same(federation.store.model(client), models[client])
            sent[client] = {c: torch.stack(rows).mean(dim=0) for c, rows in seen.items()}
            taught += len(teachers.keys() & seen.keys())
        means = sent
    assert taught


def test_a_refused_report_is_not_taken_out_of_the_sum() -> None:
    """A client that reported NaN is taught by the mean of all reports that were accepted."""
    federation = federate(*SMALL, "loss=mean_outputs", "partition.beta=0.2")
    updates = list(federation.engine.train([0, 1, 2], federation.server.broadcast(1)))
    federation.store.memory(0, "loss")["outputs"].fill_(math.nan)
    accepted = [update for update in updates if update.client != 0]
    take_step(federation.server, accepted)
    loss: Any = begin_client(federation.engine, 0, federation.server.broadcast(2)).loss
    for c in range(10):
        held = [u.extras["loss"]["outputs"][c] for u in accepted if u.extras["loss"]["holds"][c]]
        expected = torch.stack(held).mean(dim=0) if held else torch.zeros(10)
        torch.testing.assert_close(loss.teacher[c], expected)


def test_a_separate_model_has_the_teacher_of_the_shared_model() -> None:
    """Before it, the client has reported predictions that are not yet in the server's sum."""
    federation = federate(*SMALL, "loss=mean_outputs", "personalization=ditto")
    engine, server = federation.engine, federation.server
    take_step(server, engine.train([0, 1, 2], server.broadcast(1)))
    message = server.broadcast(2)
    with engine.resources.store.open(0) as state:
        loss: Any = engine.begin(0, message, state).loss
        teacher, known = loss.teacher.clone(), loss.known.clone()
        engine.fit(federation.module, [Phase(epochs=1)])
        engine.finish(state, draws=1)
        engine.begin_personal(0, message, state)
    assert known.any()
    torch.testing.assert_close(loss.teacher, teacher)
    assert torch.equal(loss.known, known)


def test_a_client_sends_the_mean_of_its_predictions() -> None:
    """With one batch an epoch and a tiny rate, they are those of the received model."""
    words = ["local.batch_size=1000", "optimizer.lr=1e-9"]
    federation = federate(*SMALL, "algorithm=feddistill", *words)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([1], message)
    module = federation.engine.resources.load_global(message).eval()
    ((inputs, labels),) = federation.data.clients[1].batches(1000)
    predictions = module(inputs).softmax(dim=1).detach()
    for c in range(10):
        held = labels == c
        assert update.extras["loss"]["holds"][c] == held.any()
        if held.any():
            mean = predictions[held].mean(dim=0)
            torch.testing.assert_close(update.extras["loss"]["outputs"][c], mean)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_predictions_are_summed_in_32_bits_with_mixed_precision(engine: str) -> None:
    words = ["algorithm=feddistill", "engine.precision=bf16-mixed", f"engine={engine}"]
    federation = federate(*SMALL, *words)
    for update in federation.engine.train([0, 1], federation.server.broadcast(1)):
        report = update.extras["loss"]
        totals = report["outputs"].sum(dim=1)
        assert totals.dtype == torch.float32
        torch.testing.assert_close(totals, report["holds"].float())


def test_a_class_that_the_cohort_lacks_keeps_its_predictions() -> None:
    three_classes = ["partition=shards", "partition.classes_per_client=3"]
    federation = federate(*SMALL, "algorithm=feddistill", *three_classes)
    known: set[int] = set()
    for round, cohort in ((1, [0, 1]), (2, [2, 3])):
        updates = federation.engine.train(cohort, federation.server.broadcast(round))
        take_step(federation.server, updates)
        for client in cohort:
            known |= set(federation.data.clients[client].labels.tolist())
        holders = federation.server.broadcast(round + 1).extras["loss"]["holders"]
        assert set(holders.nonzero().flatten().tolist()) == known


def test_no_client_is_its_own_teacher_for_a_class_of_an_earlier_turn() -> None:
    federation = federate(*SMALL, "algorithm=feddistill")
    loss: Any = federation.server.parts["loss"]
    memory: Tensors = {}
    for round, classes in ((1, [0, 1]), (2, [1])):
        counts = torch.zeros(10).index_fill_(0, torch.tensor(classes), 3)
        measured = {"sums": torch.rand(10, 10), "counts": counts}
        client: Any = SimpleNamespace(round=round, measured=lambda part, found=measured: found)
        loss.aggregate([PartUpdate(0, 6, {}, loss.report(client, memory))])
    loss.begin(client, PartMessage(3, {}, loss.broadcast(3)), memory)
    assert loss.known.tolist() == [0] * 10  # nobody else has reported a class
    loss.begin(client, PartMessage(3, {}, loss.broadcast(3)), {})
    assert loss.known.tolist() == [1, 1] + [0] * 8


def test_only_predictions_are_sent() -> None:
    metrics = federate(*SMALL, "algorithm=feddistill").run_round(1).metrics
    assert metrics["cost/upload_bytes"] == 2 * (4 * 100 + 10 + 8)  # two clients
    assert metrics["cost/download_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "loss=mean_outputs", "local.epochs=2"], rounds=2)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("loss=mean_outputs", "clients.per_round=4")
