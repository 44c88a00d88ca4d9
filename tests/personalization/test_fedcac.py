"""FedCAC against hand values, against plain PyTorch, and in federations."""

import pytest
import torch
from support.federations import equal, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import copy, personalized, train

from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.personalization.fedcac import FedCAC, critical, overlaps, similar
from fedexp.testing import check_part


def test_critical_elements_by_hand() -> None:
    """The sensitivities are 2, 0.5, 6, 0 and 1; the share 0.5 of five elements is two."""
    before = torch.tensor([1.0, 1.0, 1.0, 1.0, -2.0])
    after = torch.tensor([2.0, 0.5, 3.0, 1.0, -1.0])
    assert critical(before, after, 0.39).tolist() == [0, 0, 1, 0, 0]
    assert critical(before, after, 0.5).tolist() == [1, 0, 1, 0, 0]
    assert critical(before, after, 0.6).tolist() == [1, 0, 1, 0, 1]
    assert critical(before, after, 0.0).tolist() == [0, 0, 0, 0, 0]


def test_equal_elements_are_marked_together_and_zeros_never() -> None:
    after = torch.tensor([[2.0, 2.0], [0.0, 3.0]])
    assert critical(torch.ones(2, 2), after, 0.5).tolist() == [[1, 1], [0, 1]]
    assert critical(torch.ones(2, 2), torch.ones(2, 2), 0.5).tolist() == [[0, 0], [0, 0]]
    assert critical(torch.ones(2, 2), after, 1.0).tolist() == [[1, 1], [0, 1]]


def test_overlaps_by_hand() -> None:
    """The marks are 1100, 0110 and 0000."""
    marks = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]).double()
    found = overlaps(marks @ marks.T).tolist()
    assert found == [[1, 0.5, 0.5], [0.5, 1, 0.5], [0, 0, 0]]


def test_similar_clients_by_hand() -> None:
    """The mean over pairs is 0.4 and the largest overlap 0.9."""
    table = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]).double()
    pair = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert similar(table, 0.0).tolist() == pair
    assert similar(table, 1.0).tolist() == pair
    assert similar(table, 1.01).tolist() == torch.eye(3).tolist()
    assert similar(torch.ones(1, 1), 0.5).tolist() == [[1]]


def test_equal_overlaps_make_all_clients_similar() -> None:
    assert similar(torch.full((3, 3), 1 / 3).double(), 1.0).all()
    assert similar(torch.full((4, 4), 0.1).double(), 1.0).all()


def part(beta: float = 100.0) -> FedCAC:
    counts = torch.ones(4, 2, dtype=torch.int64)
    made = FedCAC(0.5, beta)
    shapes = {"w": torch.Size([4])}
    made.setup(Setting(0, 5, 2, 1, 4, 4, Clients.of(counts), Model(shapes, frozenset(["w", "m"]))))
    return made


def update(client: int, value: float, marks: list[int]) -> PartUpdate:
    extras = {"model/w": torch.full((4,), float(value)), "w": torch.tensor(marks).bool()}
    return PartUpdate(client, 1, {}, extras)


def sent_to(made: FedCAC, client: int) -> Tensors:
    message = PartMessage(2, {"w": torch.full((4,), 9.0), "m": torch.tensor(8.0)})
    return made.message_to(client, message).weights


def test_a_message_by_hand() -> None:
    """Clients 0 and 1 overlap by 1, clients 0 and 2 by 0.5, clients 1 and 2 by 0.5."""
    made = part()
    made.aggregate(
        [update(0, 1, [1, 1, 0, 0]), update(1, 4, [1, 1, 0, 0]), update(2, 7, [0, 1, 1, 0])]
    )
    assert made.metrics() == {"personalization/similar_clients": pytest.approx(2 / 3)}
    assert sent_to(made, 0)["w"].tolist() == [2.5, 2.5, 9, 9]
    assert sent_to(made, 2)["w"].tolist() == [9, 7, 7, 9]
    assert sent_to(made, 3)["w"].tolist() == [9, 9, 9, 9]
    assert sent_to(made, 0)["m"] == 8


def test_fewer_clients_are_similar_in_later_rounds() -> None:
    """The overlaps are 1, 0.5 and 0: the mean is 0.5, and the threshold 0.5 + t / beta / 2."""
    made, found = part(beta=2.0), []
    marks = {0: [1, 1, 0, 0], 1: [1, 1, 0, 0], 2: [0, 1, 1, 0], 3: [0, 0, 1, 1]}
    for _ in range(3):
        made.aggregate([update(client, 1, own) for client, own in marks.items()])
        found.append(made.metrics()["personalization/similar_clients"])
    assert found == [0.5, 0.5, 0]


def test_two_rounds_by_plain_pytorch() -> None:
    federation = personalized("fedcac")
    start = copy(federation.server.weights)
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    message = federation.server.broadcast(2)
    marks = {}
    for client, model in models.items():
        own = {}
        for name, value in model.items():
            c = ((value - start[name]) * value).abs().flatten()
            own[name] = (c >= c.sort(descending=True).values[len(c) // 2 - 1]).view_as(value)
        marks[client] = own
    flat = {c: torch.cat([m.flatten() for m in own.values()]).int() for c, own in marks.items()}
    table = {
        (i, j): 1 - (flat[i] - flat[j]).abs().sum().item() / (2 * flat[i].sum().item())
        for i in flat
        for j in flat
        if i != j
    }
    mean = sum(table.values()) / len(table)
    threshold = mean + 0.01 * (max(table.values()) - mean)
    for client in models:
        group = [client, *(j for j in models if j != client and table[client, j] >= threshold)]
        for name, value in message.to_client(client).weights.items():
            custom = sum(models[j][name] for j in group) / len(group)
            expected = torch.where(marks[client][name], custom, federation.server.weights[name])
            torch.testing.assert_close(value, expected)
    assert equal(message.to_client(2).weights, federation.server.weights)


def test_three_rounds_with_training_by_plain_pytorch() -> None:
    """Each turn starts from the client's mean where its marks are, and elsewhere from the average.

    Marks are computed from the models that fedexp trained: a rounding may decide about a mark.
    """
    words = ["algorithm=fedcac", "personalization.beta=4"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    x, means, marks, shared = dict(loop.start), {}, {}, 0
    for round, cohort in loop.cohorts(3):
        message, starts, models = federation.server.broadcast(round), {}, {}
        for k in cohort:
            start = {n: torch.where(marks[k][n], means[k][n], x[n]) for n in x} if k in means else x
            starts[k] = copy(message.to_client(k).weights)
            assert_same(starts[k], start)
        train(federation, round, cohort)
        for k in cohort:
            y = starts[k]
            for batch in loop.batches(round, k):
                y = {n: y[n] - LR * g for n, g in loop.gradient(y, batch).items()}
            models[k] = copy(federation.store.model(k))
            assert_same(models[k], y)
            marks[k] = {}
            for n, w in models[k].items():
                c = ((w - starts[k][n]) * w).abs()
                marks[k][n] = c >= c.flatten().topk(c.numel() // 2).values[-1]
        x = loop.mean(models, cohort, x)
        flat = {k: torch.cat([m.flatten() for m in marks[k].values()]).int() for k in cohort}
        overlap = {
            (i, j): 1 - (flat[i] - flat[j]).abs().sum().item() / (2 * flat[i].sum().item())
            for i in cohort
            for j in set(cohort) - {i}
        }
        mean = sum(overlap.values()) / len(overlap)
        limit = mean + round / 4 * (max(overlap.values()) - mean)
        for i in cohort:
            group = [i, *(j for j in set(cohort) - {i} if overlap[i, j] >= limit - 1e-9)]
            means[i] = {n: sum(models[j][n] for j in group) / len(group) for n in x}
            shared += len(group) - 1
    assert 0 < shared < 18


def test_a_mark_is_a_byte() -> None:
    federation = federate("clients.count=4", "clients.per_round=4", "algorithm=fedcac", "rounds=2")
    size = 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == 4 * 4 * size
        assert metrics["cost/upload_bytes"] == 4 * (4 + 1) * size
        assert "global/accuracy" not in metrics


def test_a_client_remembers_nothing_between_rounds() -> None:
    federation = personalized("fedcac")
    train(federation, 1)
    assert federation.store.memory(0, "personalization") == {}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    one, other = (personalized("fedcac", f"engine={each}") for each in ("serial", engine))
    for federation in (one, other):
        for round, cohort in ((1, (0, 1, 3)), (2, (1, 2))):
            train(federation, round, cohort)
    for client in range(4):
        sent = [each.server.broadcast(3).to_client(client).weights for each in (one, other)]
        for name, value in sent[0].items():
            differ = (sent[1][name] - value).abs() > 1e-5
            assert differ.float().mean() < 1e-3  # a rounding may decide about a mark


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedcac", "head=prototype", "local.grad_clip=10")
