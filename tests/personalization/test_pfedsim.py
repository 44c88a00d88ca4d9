"""pFedSim against hand values, against plain PyTorch, and in federations."""

import math
from typing import cast

import pytest
import torch
from support.federations import equal, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import assert_models_agree, copy, personalized, train

from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Head, Network
from fedexp.errors import InputError
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.personalization.client_models import weighted_mean
from fedexp.personalization.pfedsim import PFedSim, similarity
from fedexp.testing import check_part

OWN = -math.log(1 - 0.9999)
NO_WARMUP = "personalization.warmup=0"


def part() -> PFedSim:
    """The part for a body of one parameter and two buffers, and a head for two classes."""
    counts = torch.ones(4, 2, dtype=torch.int64)
    made = PFedSim(warmup=0.0)
    head = torch.nn.ParameterDict({"w": torch.zeros(2, 2), "b": torch.zeros(2)})
    made.create(Network(torch.nn.Identity(), cast(Head, head), 2, 2), CrossEntropy())
    sent = frozenset(model(0.0, [[0, 0], [0, 0]]))
    made.setup(Setting(0, 4, 2, 2, 4, 4, Clients.of(counts), Model({}, sent)))
    return made


def model(body: float, head: list[list[float]], steps: int = 0) -> Tensors:
    return {
        "backbone.w": torch.tensor([body, 2 * body]),
        "backbone.mean": torch.tensor(10 * body),
        "backbone.steps": torch.tensor(steps),
        "head.w": torch.tensor(head).float(),
        "head.b": torch.tensor([body, body]),
    }


def test_the_similarity_by_hand() -> None:
    """The cosines of the rows are 1 and 0; a second matrix has the cosines 0.6 and -1."""
    one, other = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 0.0], [5.0, 0.0]])
    assert similarity([one], [other]) == pytest.approx(0.5)
    third = torch.tensor([[0.6, 0.8], [0.0, -2.0]])
    assert similarity([one, one], [other, third]) == pytest.approx((1 + 0 + 0.6 - 1) / 4)


def test_a_similarity_is_at_least_0_and_less_than_1() -> None:
    one = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert similarity([one], [-one]) == 0
    assert similarity([one], [2 * one]) == 0.9999
    assert similarity([one], [torch.zeros(2, 2)]) == 0


def test_a_weighted_mean_by_hand() -> None:
    models = {n: {"w": torch.tensor([w]), "v": torch.tensor([w])} for n, w in ((0, 1.0), (1, 4.0))}
    found = weighted_mean(models, {0: 1.0, 1: 2.0, 2: 0.0}, ["w"])
    assert found.keys() == {"w"}
    assert found["w"].tolist() == pytest.approx([3.0])


def test_a_message_by_hand() -> None:
    """Clients 0 and 1 have the similarity 0.5, clients 0 and 2 the similarity 0."""
    made = part()
    models = {
        0: model(1.0, [[2, 0], [0, 1]], 7),
        1: model(3.0, [[3, 0], [5, 0]], 8),
        2: model(9.0, [[0, 1], [-1, 0]], 9),
    }
    made.aggregate([PartUpdate(c, 1, {}, m) for c, m in models.items()])
    found = made.message_to(0, PartMessage(2, model(0.0, [[0, 0], [0, 0]]))).weights
    own, other = OWN / (OWN + math.log(2)), math.log(2) / (OWN + math.log(2))
    mean = own * 1 + other * 3
    torch.testing.assert_close(found["backbone.w"], torch.tensor([mean, 2 * mean]))
    torch.testing.assert_close(found["backbone.mean"], torch.tensor(10 * mean))
    assert found["backbone.steps"] == 7
    assert found["head.w"].tolist() == [[2, 0], [0, 1]]
    assert found["head.b"].tolist() == [1, 1]


def test_clients_that_never_met_are_not_compared() -> None:
    """Both have the same head."""
    made = part()
    for client in (0, 1):
        made.aggregate([PartUpdate(client, 1, {}, model(client + 1.0, [[2, 0], [0, 1]]))])
        found = made.message_to(client, PartMessage(2, model(0.0, [[0, 0], [0, 0]]))).weights
        assert equal(found, model(client + 1.0, [[2, 0], [0, 1]]))


def test_a_new_similarity_replaces_the_old_one() -> None:
    made = part()
    one, equal_one, other = (
        [[2.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, 1.0]],
        [[0.0, 1.0], [1.0, 0.0]],
    )
    for head, expected in ((equal_one, 0.9999), (other, 0.0)):
        made.aggregate(
            [PartUpdate(0, 1, {}, model(1.0, one)), PartUpdate(1, 1, {}, model(1.0, head))]
        )
        assert made.server_state()["similarity"] == {0: {1: expected}, 1: {0: expected}}


def test_the_warm_up_is_fedavg_s_and_then_the_global_model_stays() -> None:
    size = ["clients.count=4", "clients.per_round=2", "data.subset=200", "rounds=5"]
    one = federate(*size, "algorithm=pfedsim")
    other = federate(*size, "algorithm=fedavg", "measure.global=null", "objective=train/loss")
    for round in range(1, 6):
        one.run_round(round)
        if round <= 2:
            other.run_round(round)
        assert equal(one.server.weights, other.server.weights)
    assert one.server.idle_rounds == 0


def test_a_longer_run_that_goes_on_has_no_second_warm_up() -> None:
    size = ["clients.count=4", "clients.per_round=2", "data.subset=200", "algorithm=pfedsim"]
    short, longer = federate(*size, "rounds=2"), federate(*size, "rounds=20")
    short.run_round(1)
    parts = [each.server.parts["personalization"] for each in (short, longer)]
    parts[1].load_server_state(parts[0].server_state())
    weights = short.server.weights
    for part in parts:
        assert part.extract(weights, weights).keys() == weights.keys()  # the warm-up is over


def test_a_round_of_own_models_by_plain_pytorch() -> None:
    federation = personalized("pfedsim", NO_WARMUP)
    initial = copy(federation.server.weights)
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    message = federation.server.broadcast(2)
    assert equal(message.to_client(2).weights, initial)
    rows = {n: torch.nn.functional.normalize(m["head.linear.weight"]) for n, m in models.items()}
    shares = {n: -math.log(1 - max(0.0, (rows[1] * rows[n]).sum().item() / 10)) for n in (0, 3)}
    assert max(shares.values()) > 1e-3
    shares[1] = OWN
    for name, value in message.to_client(1).weights.items():
        expected = models[1][name]
        if name.startswith("backbone."):
            expected = sum(a * models[n][name] for n, a in shares.items()) / sum(shares.values())
        torch.testing.assert_close(value, expected)


def test_a_warm_up_and_three_rounds_by_plain_pytorch() -> None:
    """The bodies are mixed before a client's turn, by similarities of all earlier cohorts."""
    words = ["algorithm=pfedsim", "rounds=5"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    x, similar = dict(loop.start), 0.9999 * torch.eye(5)
    own = dict.fromkeys(range(5), x)

    def mixture(k: int) -> Tensors:
        shares = -(1 - similar[k]).log()
        shares = shares / shares.sum()
        means = {n: sum(shares[j] * own[j][n] for j in own) for n in x if "head" not in n}
        return own[k] | cast(Tensors, means)

    for round, cohort in loop.cohorts(5):
        trained = {}
        for k in cohort:
            y = dict(x) if round <= 2 else mixture(k)
            for batch in loop.batches(round, k):
                y = {n: y[n] - LR * g for n, g in loop.gradient(y, batch).items()}
            trained[k] = y
        federation.run_round(round)
        if round <= 2:
            x = loop.mean(trained, cohort, x)
            own = dict.fromkeys(range(5), x)
            continue
        own |= trained
        for i in cohort:
            assert_same(copy(federation.store.model(i)), trained[i])
            for j in set(cohort) - {i}:
                rows = (own[k]["head.linear.weight"] for k in (i, j))
                cosines = torch.cosine_similarity(*rows, dim=1)
                similar[i, j] = cosines.mean().clamp(min=0)
    assert_same(federation.server.weights, x)
    message = federation.server.broadcast(6)
    for k in own:
        assert_same(message.to_client(k).weights, mixture(k))
    assert (similar > 0).sum() > 11
    assert (similar == 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_models_agree(engine, ["personalization=pfedsim", NO_WARMUP])


def test_a_head_without_trained_weights_is_refused() -> None:
    for words, reason in (
        ("head=etf", "no trained weight matrix to compare clients by"),
        ("head=prototype", r"personalization=pfedsim: .* this head trains none"),
        ("model.train=[backbone]", r"add head to model\.train"),
    ):
        with pytest.raises(InputError, match=reason):
            personalized("pfedsim", words)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=pfedsim", NO_WARMUP)
    check_part("personalization=pfedsim", NO_WARMUP, "head=cosine")
