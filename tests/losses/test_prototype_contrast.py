"""FedPCL: the contrasts by hand, the loss and one step by plain loops, and what is sent."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate
from support.plain_mlp import features
from support.small_federations import ONE_STEP, SMALL, copy, personal, train
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.losses.prototype_contrast import PrototypeContrast, contrasts

PROTOTYPES = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
EVERY = torch.ones(3, dtype=torch.bool)


def reports(prototypes: torch.Tensor, counts: torch.Tensor) -> list[PartUpdate]:
    """The reports of clients with these prototypes [K, C, d] and class counts [K, C]."""
    pairs = zip(prototypes, counts, strict=True)
    return [
        PartUpdate(client, 1, {}, {"prototypes": means, "counts": held})
        for client, (means, held) in enumerate(pairs)
    ]


@pytest.mark.parametrize("negatives", ["others", "all"])
def test_a_contrast_by_hand(negatives: str) -> None:
    # The products with the prototypes are 0.6, 0.8 and -0.6; divided by tau = 0.5.
    z, y = torch.tensor([[0.6, 0.8]]), torch.tensor([1])
    found = contrasts(z, y, PROTOTYPES, EVERY, 0.5, negatives)  # type: ignore[arg-type]
    others = math.exp(1.2) + math.exp(-1.2)
    total = others if negatives == "others" else others + math.exp(1.6)
    assert found.tolist() == [[pytest.approx(math.log(total) - 1.6, rel=1e-5)]]


def test_unknown_classes_are_left_out_and_their_gradient_is_finite() -> None:
    z, y = torch.tensor([[0.6, 0.8], [1.0, 0.0]], requires_grad=True), torch.tensor([1, 2])
    holds = torch.tensor([True, True, False])
    found = contrasts(z, y, PROTOTYPES, holds, 0.5, "others").flatten()
    assert found.tolist() == pytest.approx([1.2 - 1.6, 0])
    alone = contrasts(
        z, torch.zeros(2, dtype=torch.long), PROTOTYPES, holds & (y[0] == 0), 1, "all"
    )
    slopes = torch.autograd.grad(found.sum() + alone.sum(), z)[0]
    assert alone.tolist() == [[0], [0]]
    torch.testing.assert_close(slopes, torch.tensor([[2.0, -2.0], [0, 0]]))


def test_the_loss_fills_a_clients_missing_classes_and_leaves_out_missing_clients() -> None:
    loss = PrototypeContrast(0.25, 0.5, "all", "uniform")
    sizes = Clients.of(torch.ones(3, 3, dtype=torch.int64))
    loss.setup(Setting(0, 1, 3, 2, 3, 3, sizes, Model({})))
    draw = torch.Generator().manual_seed(0)
    local = torch.randn(2, 3, 2, generator=draw)
    counts = torch.tensor([[1, 2, 0], [3, 0, 4]])
    loss.aggregate(reports(local, counts))  # two of at most three clients
    loss.receive(PartMessage(2, {}, loss.broadcast(2)))
    means = torch.stack([local[:, 0].mean(dim=0), local[0, 1], local[1, 2]])
    sets = [means, torch.stack([*local[0, :2], means[2]])]
    sets += [torch.stack([local[1, 0], means[1], local[1, 2]])]
    z, y = torch.randn(4, 2, generator=draw), torch.tensor([0, 1, 2, 2])
    logits = torch.randn(4, 3, generator=draw)
    unit = z / z.norm(dim=1, keepdim=True)
    first, *others = (F.cross_entropy(unit @ each.T / 0.5, y) for each in sets)
    expected = 0.25 * F.cross_entropy(logits, y) + first + sum(others) / 2
    torch.testing.assert_close(loss(Forward(z, logits, y)), expected)


def test_prototypes_of_an_earlier_cohorts_clients_are_dropped() -> None:
    """The second cohort lacks class 1, which keeps its global prototype, and is smaller."""
    loss = PrototypeContrast(0, 0.5, "all", "uniform")
    first, counts = torch.rand(3, 2, 2), torch.tensor([[1, 1], [0, 2], [1, 0]])
    loss.aggregate(reports(first, counts))
    loss.aggregate(reports(torch.ones(1, 2, 2), torch.tensor([[1, 0]])))
    sent = loss.broadcast(3)
    torch.testing.assert_close(sent["prototypes"][1], first[:2, 1].mean(dim=0))
    assert sent["holds"].tolist() == [True, True]
    assert sent["local_holds"].tolist() == [[True, False]]


def test_a_step_of_the_second_round_by_a_plain_loop() -> None:
    federation = federate(*SMALL, "algorithm=fedpcl", *ONE_STEP, "optimizer.lr=0.1")
    initial = copy(federation.engine.resources.initial)
    train(federation, 1)
    model = federation.store.model(0)
    body = [f"backbone.1.{n}.{part}" for n in (0, 2) for part in ("weight", "bias")]
    assert all(torch.equal(initial[name], model[name]) for name in body)  # no prototypes yet
    w = {name: model[name].clone().requires_grad_() for name in body}

    batches = [next(iter(federation.data.clients[n].batches(1000))) for n in (0, 1)]
    own = []
    for inputs, y in batches:
        z = unit_features(w, inputs).detach()
        own.append({c: z[y == c].mean(dim=0) for c in y.unique().tolist()})
    classes = sorted({c for each in own for c in each})
    means = {c: torch.stack([p[c] for p in own if c in p]).mean(dim=0) for c in classes}
    (inputs, y), total = batches[0], torch.zeros(())
    for weight, each in ((1.0, means), (0.5, own[0]), (0.5, own[1])):
        rows = torch.stack([each.get(c, means[c]) for c in classes])
        for z, label in zip(unit_features(w, inputs), y.tolist(), strict=True):
            scores = (rows @ z / 0.07).exp()
            place = classes.index(label)
            others = scores.sum() - scores[place]
            total = total + weight * (others / scores[place]).log() / len(y)
    slopes = torch.autograd.grad(total, list(w.values()))
    train(federation, 2)
    trained = federation.store.model(0)
    for (name, value), slope in zip(w.items(), slopes, strict=True):
        expected = (value - 0.1 * slope).detach()
        torch.testing.assert_close(trained[name], expected, rtol=1e-3, atol=1e-4)


def unit_features(w: Tensors, inputs: Tensor) -> Tensor:
    z = features(w, inputs)
    return z / z.norm(dim=1, keepdim=True)


def test_three_rounds_by_plain_pytorch() -> None:
    """Turns of several steps on batches, and the prototypes that the server sends after each."""
    words = ["optimizer.momentum=0", "optimizer.weight_decay=0"]
    federation = federate(*SMALL, "algorithm=fedpcl", *words, "optimizer.lr=0.05")
    initial = copy(federation.engine.resources.initial)
    body = {name: value for name, value in initial.items() if name.startswith("backbone.")}
    models = {0: body, 1: body}
    means: dict[int, Tensor] = {}
    own: list[dict[int, Tensor]] = []
    for round in (1, 2, 3):
        reports = []
        for client, w in models.items():
            data = federation.data.clients[client]
            for inputs, y in data.local_batches(round, 16) if means else ():
                w = {name: value.clone().requires_grad_() for name, value in w.items()}
                loss = torch.zeros(())
                for weight, held in ((1.0, means), (0.5, own[0]), (0.5, own[1])):
                    rows = torch.stack([held.get(c, means[c]) for c in means])
                    scores = unit_features(w, inputs) @ rows.T / 0.07
                    is_own = y.unsqueeze(1) == torch.tensor(list(means))
                    others = scores.masked_fill(is_own, -torch.inf).logsumexp(dim=1)
                    loss = loss + weight * (others - scores[is_own]).mean()
                slopes = torch.autograd.grad(loss, list(w.values()))
                steps = zip(w.items(), slopes, strict=True)
                w = {name: (value - 0.05 * g).detach() for (name, value), g in steps}
            models[client] = w
            ((inputs, y),) = data.batches(1000)
            z = unit_features(w, inputs)
            reports.append({c: z[y == c].mean(dim=0) for c in y.unique().tolist()})
        own = reports
        held = sorted({c for each in own for c in each})
        means = {c: torch.stack([p[c] for p in own if c in p]).mean(dim=0) for c in held}
        train(federation, round)
        sent = federation.server.broadcast(round + 1).extras["loss"]
        for client, w in models.items():
            trained = federation.store.model(client)
            for name, value in w.items():
                torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)
            for c, prototype in own[client].items():
                torch.testing.assert_close(sent["local"][client, c], prototype, atol=1e-5, rtol=0)
        for c, prototype in means.items():
            torch.testing.assert_close(sent["prototypes"][c], prototype, atol=1e-5, rtol=0)
    assert any(not torch.allclose(models[0][name], body[name], atol=0.01) for name in body)


def test_a_client_predicts_by_its_own_prototypes() -> None:
    federation = federate(*SMALL, "algorithm=fedpcl")
    for round in (1, 2):
        train(federation, round)
    model = copy(federation.store.model(1))
    module = federation.engine.resources.load_global(federation.server.broadcast(2))
    module.load(model)
    ((inputs, y),) = federation.data.clients[1].batches(1000)
    with torch.no_grad():
        z = F.normalize(module.eval().backbone(inputs))
    means = torch.stack([z[y == c].mean(dim=0) for c in y.unique()])
    found = model["personalization.prototypes"][y.unique()]
    torch.testing.assert_close(found, means, rtol=1e-4, atol=1e-5)
    tests, labels = (
        torch.cat(each) for each in zip(*federation.data.test.batches(1000), strict=True)
    )
    with torch.no_grad():
        nearest = torch.cdist(F.normalize(module.backbone(tests)), means).argmin(dim=1)
    assert torch.equal(personal(federation, 2)[1].correct, y.unique()[nearest] == labels)


def test_the_heatmap_shows_the_servers_prototypes() -> None:
    federation = federate(*SMALL, "algorithm=fedpcl")
    train(federation, 1)
    message = federation.server.broadcast(2)
    module = federation.engine.resources.load_global(message)
    found = module.personalization.class_vectors()
    assert torch.equal(found, message.extras["loss"]["prototypes"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    words = [*SMALL, "algorithm=fedavg", "loss=prototype_contrast", "loss.ce_weight=1"]
    assert_engine_agrees(engine, words, rounds=2)
