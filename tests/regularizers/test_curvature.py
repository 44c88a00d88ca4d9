"""FedCurv: Fisher information sample by sample, the penalty by hand, and two rounds by a loop."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.state_files import through_a_file

from fedexp.core.messages import Message, PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.regularizers.curvature import Curvature
from fedexp.regularizers.fisher import diagonal_fisher

SMALL = ["clients.count=5", "clients.per_round=3", "data.subset=150", "local.epochs=1"]
FEDCURV = [*SMALL, "algorithm=fedcurv", "regularizer.lam=5", "optimizer.lr=0.05"]
WEIGHTS = {1: 1.0, 2: 3.0, 3: -1.0}
FISHER = {1: 2.0, 2: 1.0, 3: 0.0}


def tiny(lam: float = 0.5) -> Curvature:
    """A server half and client half of a model with one weight ``w``."""
    part = Curvature(lam, 8)
    shapes = {"w": torch.Size([1])}
    model = Model(shapes, frozenset(shapes))
    part.setup(Setting(0, 1, 1, 1, 4, 3, Clients.of(torch.ones(4, 1)), model))
    return part


def after_a_round() -> Curvature:
    part = tiny()
    updates = []
    for client, w in WEIGHTS.items():
        fisher = torch.tensor([FISHER[client]])
        extras = {"fisher/w": fisher, "weighted/w": fisher * w}
        updates.append(PartUpdate(client, 1, {}, extras))
    part.aggregate(updates)
    return part


def penalty_at(part: Curvature, client: int, value: float) -> tuple[float, float]:
    """The client's penalty at ``value``, and its slope."""
    message = PartMessage(2, {}, part.extras_to(client, PartMessage(2, {})))
    part.begin(SimpleNamespace(), message, {})  # type: ignore[arg-type]
    w = torch.tensor([value], requires_grad=True)
    penalty = part([("w", w)])
    assert isinstance(penalty, torch.Tensor)
    (slope,) = torch.autograd.grad(penalty, w)
    return penalty.item(), slope.item()


@pytest.mark.parametrize("client", [0, 1, 2, 3])
def test_the_penalty_is_over_the_other_clients(client: int) -> None:
    """Up to a constant: sum_j F_j (w - w_j)^2 over j in {1, 2, 3} without the client."""

    def expected(value: float) -> float:
        others = [each for each in WEIGHTS if each != client]
        return 0.5 * sum(FISHER[each] * (value - WEIGHTS[each]) ** 2 for each in others)

    part = after_a_round()
    (low, slope), (high, _) = (penalty_at(part, client, value) for value in (0.5, 2.0))
    assert high - low == pytest.approx(expected(2.0) - expected(0.5))
    assert slope == pytest.approx((expected(0.501) - expected(0.499)) / 0.002, abs=1e-4)


def test_message_by_hand() -> None:
    extras = after_a_round().extras_to(2, PartMessage(2, {}))
    assert {name: value.item() for name, value in extras.items()} == {
        "fisher/w": 2.0,
        "weighted/w": 2.0,
    }


def test_there_is_no_penalty_before_the_first_round() -> None:
    part = tiny()
    assert part.extras_to(1, PartMessage(1, {})) == {}
    assert penalty_at(part, 1, 3.0) == (0.0, 0.0)


def test_the_order_of_updates_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    updates = [
        PartUpdate(k, 1, {}, {"fisher/w": torch.rand(1, generator=generator)}) for k in range(9)
    ]
    parts = tiny(), tiny()
    for part, ordered in zip(parts, (updates, updates[::-1]), strict=True):
        part.aggregate(ordered)
    one, other = (part.extras_to(4, PartMessage(2, {})) for part in parts)
    assert torch.equal(one["fisher/w"], other["fisher/w"])


BODIES = {
    "mlp": [],
    "batchnorm": ["model._target_=support.curvature_bodies.with_batchnorm"],
    "branching": ["model._target_=support.curvature_bodies.branching"],
    "recurrent": ["model._target_=support.curvature_bodies.recurrent"],
}
NO_MLP = ["~model.hidden", "~model.feature_dim", "~model.rectify", "~model.batch_norm"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("batch_size", [7, 1000])
def test_fisher_sample_by_sample(body: str, batch_size: int) -> None:
    words = [*BODIES[body], *(NO_MLP if BODIES[body] else [])]
    federation = federate(*SMALL, "partition=iid", *words)
    federation.run_round(1)
    module: Any = federation.module
    weights = {name: value.detach() for name, value in module.tensor_index.parameters()}
    found = diagonal_fisher(module, weights, batch_size)

    module.eval().train_only(("",))
    parameters = dict(module.tensor_index.parameters())
    expected = {name: torch.zeros_like(value) for name, value in weights.items()}
    ((inputs, targets),) = module.data.batches(1000)
    for x, y in zip(inputs, targets, strict=True):
        loss = F.cross_entropy(module(x[None]), y[None])
        slopes = torch.autograd.grad(loss, list(parameters.values()))
        for name, slope in zip(parameters, slopes, strict=True):
            expected[name] += slope.square() / len(inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
        assert value.any()


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_two_rounds_equal_a_plain_loop(engine: str) -> None:
    """Plain SGD on cross-entropy + lam sum_j F_j (w - w_j)^2, with the terms of the last round."""
    words = [*FEDCURV, f"engine={engine}", "optimizer.momentum=0", "optimizer.weight_decay=0"]
    federation = federate(*words)
    module: Any = federation.module
    message = federation.server.broadcast(1)
    updates = list(federation.engine.train([0, 1, 2], message))
    for update in updates:
        federation.server.add(update)
    federation.server.step()
    terms = {each.client: each.extras["regularizer"] for each in updates}
    second = federation.server.broadcast(2)
    for client in (0, 4):  # in the last cohort, and not
        others = [terms[each] for each in (0, 1, 2) if each != client]
        weights = {name: value.clone() for name, value in second.weights.items()}
        for inputs, targets in federation.data.clients[client].local_batches(2, 16):
            point = {name: value.requires_grad_() for name, value in weights.items()}
            logits = torch.func.functional_call(module, point, (inputs,))
            loss = F.cross_entropy(logits, targets)
            for name, value in point.items():
                for term in others:
                    fisher = term[f"fisher/{name}"]
                    theirs = torch.where(fisher > 0, term[f"weighted/{name}"] / fisher, 0)
                    loss = loss + 5 * (fisher * (value - theirs) ** 2).sum()
            slopes = torch.autograd.grad(loss, list(point.values()))
            steps = zip(point.items(), slopes, strict=True)
            weights = {name: (w - 0.05 * slope).detach() for (name, w), slope in steps}
        (update,) = federation.engine.train([client], second)
        for name, value in update.weights.items():
            torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)


def test_without_strength_it_is_fedavg() -> None:
    plain = federate(*SMALL, "optimizer.lr=0.05")
    curved = federate(*FEDCURV, "regularizer.lam=0")
    for federation in (plain, curved):
        for round in (1, 2):
            federation.run_round(round)
    for name, value in plain.server.weights.items():
        assert torch.equal(value, curved.server.weights[name])


def test_what_crosses_the_network() -> None:
    """Three models up, and from the second round three models down."""
    federation = federate(*FEDCURV)
    model = sum(value.nbytes for value in federation.server.weights.values())
    records = [federation.run_round(round).metrics for round in (1, 2)]
    assert [each["cost/upload_bytes"] for each in records] == [9 * model, 9 * model]
    assert [each["cost/download_bytes"] for each in records] == [3 * model, 9 * model]


def test_server_state_is_restored() -> None:
    federation = federate(*FEDCURV)
    federation.run_round(1)
    part = federation.server.parts["regularizer"]
    other = federate(*FEDCURV).server.parts["regularizer"]
    other.load_server_state(through_a_file(part.server_state()))
    sent: list[Tensors] = [each.extras_to(1, PartMessage(2, {})) for each in (part, other)]
    assert sent[0].keys() == sent[1].keys() != set()
    for name, value in sent[0].items():
        assert torch.equal(value, sent[1][name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["head=etf"], ["personalization=fedper"], ["loss=moon", "head=prototype"]]
)
def test_it_combines_with_other_sockets(words: list[str]) -> None:
    federation = federate(*FEDCURV, *words)
    for round in (1, 2):
        assert federation.run_round(round).metrics["train/loss"] < 100
    shared = set(federation.server.weights)
    message: Message = federation.server.broadcast(3).to_client(0)
    pulled = {name.partition("/")[2] for name in message.extras["regularizer"]}
    assert pulled <= shared


def test_wrong_values_are_named() -> None:
    with pytest.raises(InputError, match=r"regularizer\.lam=-1"):
        federate(*FEDCURV, "regularizer.lam=-1")
