"""CReFF's head: every formula by an independent loop, and FedAvg for all but the global model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.federations import equal, federate
from support.state_files import through_a_file
from torch import Tensor, nn

from fedexp.core.messages import Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.heads.retrained import (
    Retrained,
    class_gradients,
    match_gradients,
    mismatch,
    retrained_classifier,
)
from fedexp.runtime.federation import Federation

CLASSES, DIM = 4, 5
SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]
QUICK = ["head.match_steps=5", "head.retrain_epochs=3", "head.features=10"]
CREFF = [*SMALL, "algorithm=creff", *QUICK]


def sensitive_to_mode(input_shape: tuple[int, ...]) -> nn.Module:
    """A body that gives other features in train mode."""
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers)


SENSITIVE_TO_MODE = ["model._target_=test_retrained.sensitive_to_mode"]
SENSITIVE_TO_MODE += [
    "~model.hidden",
    "~model.feature_dim",
    "~model.rectify",
    "~model.batch_norm",
    "local.batch_size=999",
]


def gradient_of(features: Tensor, label: int, weight: Tensor, graph: bool = False) -> Tensor:
    """By autograd: of the mean cross-entropy of one class's ``features`` [n, d]."""
    leaf = weight.clone().requires_grad_()
    loss = F.cross_entropy(features @ leaf.T, torch.full((len(features),), label))
    (found,) = torch.autograd.grad(loss, leaf, create_graph=graph)
    return found


def loops_mismatch(gradients: list[Tensor], targets: list[Tensor]) -> Tensor:
    total = torch.zeros(())
    for gradient, target in zip(gradients, targets, strict=True):
        for row, wanted in zip(gradient, target, strict=True):
            total = total + 1 - row @ wanted / (row.norm() * wanted.norm() + 1e-6)
    return total


# The formulas.


def test_class_gradients_are_those_of_autograd() -> None:
    features, weight, labels = draw(3, 7, DIM), draw(CLASSES, DIM, seed=1), [2, 0, 3]
    found = class_gradients(features, torch.tensor(labels), weight)
    for place, label in enumerate(labels):
        torch.testing.assert_close(found[place], gradient_of(features[place], label, weight))


def test_a_class_gradient_by_hand() -> None:
    # z = (1, 0) and (0, 1), V = 0: all probabilities are 1/2; row 0 is (-1/2) mean z, row 1 +
    found = class_gradients(torch.eye(2).unsqueeze(0), torch.tensor([0]), torch.zeros(2, 2))
    assert found.tolist() == [[[-0.25, -0.25], [0.25, 0.25]]]


def test_the_mismatch_by_loops_and_by_hand() -> None:
    some, others = draw(3, CLASSES, DIM), draw(3, CLASSES, DIM, seed=1)
    torch.testing.assert_close(mismatch(some, others), loops_mismatch([*some], [*others]))
    # cosines 1, -1 and 0, lengths around the 1e-6 in the denominator: 1 - 1e-6 / 2e-6 for the last
    rows = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [5.0, 0.0], [1e-3, 0.0]]])
    wanted = torch.tensor([[[1.0, 0.0], [0.0, -1.0], [0.0, 1.0], [1e-3, 0.0]]])
    assert mismatch(rows, wanted).item() == pytest.approx(0 + 2 + 1 + 0.5, abs=1e-5)


def test_gradient_matching_is_plain_sgd_on_the_mismatch() -> None:
    start, weight = draw(2, 6, DIM), draw(CLASSES, DIM, seed=1)
    labels, targets = [3, 1], draw(2, CLASSES, DIM, seed=2)
    features = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([features], lr=0.5)
    for _ in range(4):
        of_classes = [
            gradient_of(features[place], label, weight, graph=True)
            for place, label in enumerate(labels)
        ]
        optimizer.zero_grad()
        loops_mismatch(of_classes, [*targets]).backward()
        optimizer.step()
    found = match_gradients(start, torch.tensor(labels), targets, weight, steps=4, lr=0.5)
    torch.testing.assert_close(found, features.detach())
    assert not found.requires_grad


def test_matching_many_steps_finds_the_direction() -> None:
    weight, labels = draw(CLASSES, DIM), torch.tensor([2])
    targets = class_gradients(draw(1, 30, DIM, seed=1) + 1, labels, weight)
    start = draw(1, 30, DIM, seed=2)
    before = mismatch(class_gradients(start, labels, weight), targets)
    matched = match_gradients(start, labels, targets, weight, 300, 0.5)
    assert mismatch(class_gradients(matched, labels, weight), targets) < 0.1 * before


def test_retraining_is_plain_sgd_on_a_fresh_linear_layer_with_a_bias() -> None:
    features = draw(CLASSES, 5, DIM)
    found = retrained_classifier(features, 3, 8, 0.3, torch_generator(0, "test"))
    generator = torch_generator(0, "test")
    start = (2 * torch.rand(CLASSES, DIM + 1, generator=generator) - 1) / DIM**0.5
    layer = nn.Linear(DIM, CLASSES)
    layer.load_state_dict({"weight": start[:, :DIM], "bias": start[:, DIM]})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    z, y = features.flatten(0, 1), torch.arange(CLASSES).repeat_interleave(5)
    for _ in range(3):
        order = torch.randperm(len(z), generator=generator)
        for place in range(0, len(z), 8):
            batch = order[place : place + 8]
            optimizer.zero_grad()
            F.cross_entropy(layer(z[batch]), y[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(found[:, :DIM], layer.weight.detach())
    torch.testing.assert_close(found[:, DIM], layer.bias.detach())


def test_a_fresh_layer_starts_as_pytorchs() -> None:
    found = retrained_classifier(draw(50, 1, 64), 1, 9, 1e-30, torch_generator(0, "test"))
    assert found.abs().max() <= 64**-0.5
    torch.manual_seed(0)
    reference = nn.Linear(64, 50).weight.detach()
    for quantile in (0.1, 0.5, 0.9):
        some, other = (each.flatten().quantile(quantile) for each in (found, reference))
        assert some.item() == pytest.approx(other.item(), abs=0.01)


# The server's half.


def make(**options: Any) -> Retrained:
    defaults: dict[str, Any] = {
        "bias": True,
        "retrained_bias": False,
        "features": 6,
        "match_steps": 3,
        "match_lr": 0.5,
        "retrain_epochs": 2,
        "retrain_batch_size": 8,
        "retrain_lr": 0.3,
        "draws": 2,
        "draw_size": 3,
    }
    torch.manual_seed(0)
    head = Retrained(DIM, CLASSES, **(defaults | options))
    head.setup(Setting(7, 1, CLASSES, DIM, 9, 3, Clients.of(torch.ones(9, CLASSES)), Model({})))
    return head


def test_one_round_at_the_server_by_loops() -> None:
    head = make()
    first = head.server_state()["features"].clone()
    classifier = head.broadcast(1)["retrained"].clone()
    # Two clients hold class 1, one class 3, nobody classes 0 and 2.
    of_one, of_other, of_three = (draw(CLASSES, DIM, seed=seed) for seed in (1, 2, 3))
    sums = {
        "gradient/1": (of_one + of_other).double(),
        "gradient/3": of_three.double(),
        "senders": torch.tensor([0.0, 2.0, 0.0, 1.0], dtype=torch.float64),
    }
    merged = {"head.linear.weight": draw(CLASSES, DIM)}
    assert head.correct({}, merged, sums, clients=2) is merged
    labels, targets = torch.tensor([1, 3]), torch.stack([(of_one + of_other) / 2, of_three])
    expected = first.clone()
    expected[labels] = match_gradients(first[labels], labels, targets, classifier, 3, 0.5)
    state = head.server_state()
    torch.testing.assert_close(state["features"], expected)
    assert torch.equal(state["features"][[0, 2]], first[[0, 2]])
    generator = torch_generator(7, "retrained_head", 1)
    torch.testing.assert_close(
        head.broadcast(2)["retrained"],
        retrained_classifier(expected, 2, 8, 0.3, generator)[:, :DIM],
    )
    reached = mismatch(class_gradients(expected[labels], labels, classifier), targets) / 8
    assert head.metrics() == {"retrained/mismatch": pytest.approx(reached.item(), rel=1e-4)}


def bias_mismatch(gradient: Tensor, target: Tensor) -> Tensor:
    """The released distance of a weight's rows and of the bias as one vector."""
    total = loops_mismatch([gradient[:, :-1]], [target[:, :-1]])
    one, other = gradient[:, -1], target[:, -1]
    return total + 1 - one @ other / (one.norm() * other.norm() + 1e-6)


def test_a_bias_is_matched_and_kept_by_loops() -> None:
    head = make(retrained_bias=True)
    first = head.server_state()["features"].clone()
    classifier = head.broadcast(1)["retrained"].clone()
    assert classifier.shape == (CLASSES, DIM + 1)
    target = draw(CLASSES, DIM + 1, seed=1)
    senders = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    head.correct({}, {}, {"gradient/2": target.double(), "senders": senders}, clients=1)

    features = first[2].clone().requires_grad_()
    optimizer = torch.optim.SGD([features], lr=0.5)
    layer = nn.Linear(DIM, CLASSES)
    layer.load_state_dict({"weight": classifier[:, :DIM], "bias": classifier[:, DIM]})

    def distance() -> Tensor:
        loss = F.cross_entropy(layer(features), torch.full((6,), 2))
        weight, bias = torch.autograd.grad(loss, [*layer.parameters()], create_graph=True)
        return bias_mismatch(torch.column_stack([weight, bias]), target)

    for _ in range(3):
        optimizer.zero_grad()
        distance().backward()
        optimizer.step()
    torch.testing.assert_close(head.server_state()["features"][2], features.detach())
    reached = distance().item() / (CLASSES + 1)
    assert head.metrics() == {"retrained/mismatch": pytest.approx(reached, rel=1e-4)}
    generator = torch_generator(7, "retrained_head", 1)
    kept = retrained_classifier(head.server_state()["features"], 2, 8, 0.3, generator)
    torch.testing.assert_close(head.broadcast(2)["retrained"], kept)


def test_a_retrained_head_whose_training_diverges_stays_finite() -> None:
    """Its NaN had made the gradients of all clients NaN, so that no later round had an update."""
    head = make(retrain_lr=1e38, match_lr=1e3)
    senders = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    target = draw(CLASSES, DIM, seed=1).double()
    head.correct({}, {}, {"gradient/2": target, "senders": senders}, clients=1)
    assert head.broadcast(2)["retrained"].isfinite().all()


def test_the_first_features_are_normal() -> None:
    values = make(features=2000).server_state()["features"]
    assert values.shape == (CLASSES, 2000, DIM)
    assert values.mean().item() == pytest.approx(0, abs=0.02)
    assert values.std().item() == pytest.approx(1, abs=0.02)


# The client's half.


def reports(federation: Federation, *clients: int) -> dict[int, Tensors]:
    message = federation.server.broadcast(1)
    return {u.client: u.extras["head"] for u in federation.engine.train(clients, message)}


def loops_gradient(federation: Federation, client: int, label: int, augment: bool) -> Tensor:
    """Mean over draws of the class's gradient under the global model, in eval mode."""
    head: Any = federation.module.head
    data = federation.data.clients[client]
    body = federation.global_model(1).backbone
    own = (data.labels == label).nonzero().flatten()
    generator = torch_generator(0, "head_gradients", 1, client, label)
    orders = [torch.randperm(len(own), generator=generator) for _ in range(head.draws)]
    drawn = [own[order[: head.draw_size]] for order in orders]
    inputs = data.inputs(torch.cat(drawn), augment=generator if augment else None)
    with torch.no_grad():
        z = body(inputs)
    pieces = z.split(len(drawn[0]))
    weight = federation.server.broadcast(1).extras["head"]["retrained"]
    return torch.stack([gradient_of(piece, label, weight) for piece in pieces]).mean(dim=0)


@pytest.mark.parametrize("model", [[], SENSITIVE_TO_MODE], ids=["mlp", "batchnorm"])
def test_a_report_by_loops(model: list[str]) -> None:
    federation = federate(*CREFF, *model, "head.draws=3", "head.draw_size=4")
    report = reports(federation, 2)[2]
    counts = federation.data.clients[2].class_counts
    held = counts.nonzero().flatten().tolist()
    assert report.keys() == {"senders", *(f"gradient/{label}" for label in held)}
    assert report["senders"].tolist() == (counts > 0).float().tolist()
    assert counts.max() > 4
    for label in held:
        expected = loops_gradient(federation, 2, label, augment=False)
        torch.testing.assert_close(report[f"gradient/{label}"], expected, atol=1e-6, rtol=1e-4)


def test_a_draw_larger_than_the_class_is_the_whole_class() -> None:
    federation = federate(*CREFF)
    report = reports(federation, 1)[1]
    module = federation.global_model(1)
    ((inputs, labels),) = federation.data.clients[1].batches(1000)
    assert labels.bincount().max() <= 64
    with torch.no_grad():
        z = module.backbone(inputs)
    weight = federation.server.broadcast(1).extras["head"]["retrained"]
    for label in labels.unique().tolist():
        expected = gradient_of(z[labels == label], label, weight)
        torch.testing.assert_close(report[f"gradient/{label}"], expected, atol=1e-6, rtol=1e-4)


def test_the_images_are_augmented_as_in_training(image_tree: Path) -> None:
    images = ["data=image_folder", f"data.root={image_tree}", "partition=iid", "model=mlp"]
    images += ["clients.count=2", "clients.per_round=2", "algorithm=creff", *QUICK]
    augmented = federate(*images, "data.augment=crop_flip")
    found, plain = reports(augmented, 0)[0], reports(federate(*images), 0)[0]
    assert len(found) > 1
    for name in found.keys() - {"senders"}:
        label = int(name.removeprefix("gradient/"))
        expected = loops_gradient(augmented, 0, label, augment=True)
        torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-4)
        assert not torch.allclose(found[name], plain[name], atol=1e-4)


def test_draws_depend_on_client_and_round_not_on_the_order() -> None:
    federation = federate(*CREFF, "head.draw_size=1", "head.draws=1")
    some, others = reports(federation, 0, 3), reports(federation, 3, 0)
    assert all(equal(some[client], others[client]) for client in (0, 3))
    message = federation.server.broadcast(2)  # the same model in another round
    (later,) = federation.engine.train([0], message)
    assert not equal(later.extras["head"], some[0])


def test_a_report_has_the_gradient_of_a_bias() -> None:
    federation = federate(*CREFF, "head.retrained_bias=true")
    report = reports(federation, 1)[1]
    module = federation.global_model(1)
    ((inputs, labels),) = federation.data.clients[1].batches(1000)
    with torch.no_grad():
        z = module.backbone(inputs)
    weight = federation.server.broadcast(1).extras["head"]["retrained"]
    padded = torch.column_stack([z, torch.ones(len(z))])
    for label in labels.unique().tolist():
        expected = gradient_of(padded[labels == label], label, weight)
        torch.testing.assert_close(report[f"gradient/{label}"], expected, atol=1e-6, rtol=1e-4)


# In a federation.


@pytest.mark.parametrize("personalization", ["none", "finetune", "ditto"])
def test_everything_but_the_global_model_is_fedavgs_to_the_bit(personalization: str) -> None:
    options = [f"personalization={personalization}", "measure.personal.every=1"]
    if personalization == "finetune":
        options.append("personalization.epochs=1")
    fedavg, creff = federate(*SMALL, *options), federate(*CREFF, *options)
    for round in (1, 2):
        one, other = fedavg.run_round(round).metrics, creff.run_round(round).metrics
        assert equal(fedavg.server.weights, creff.server.weights)
        for name in one:
            if name.startswith(("personal/", "train/")):
                assert one[name] == other[name], name
        assert one["global/loss"] != other["global/loss"]
    states = [f.store.model(0) for f in (fedavg, creff)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_all_its_classes_count_even_if_a_client_trains_on_fewer_samples() -> None:
    federation = federate(*CREFF, "loss=cyclic_distillation", "loss.validation=0.9")
    for update in federation.engine.train([0, 1], federation.server.broadcast(1)):
        report = update.extras["head"]
        held = federation.data.clients[update.client].class_counts > 0
        assert torch.equal(report.pop("senders"), held.float())
        assert report.keys() == {f"gradient/{label}" for label in held.nonzero().flatten().tolist()}


def test_the_global_model_is_the_averaged_body_with_the_retrained_head() -> None:
    federation = federate(*CREFF)
    metrics = federation.run_round(1).metrics
    module = federation.global_model(1)
    test = federation.data.test
    ((inputs, labels),) = test.batches(1000)
    classifier = federation.server.broadcast(1).extras["head"]["retrained"]
    with torch.no_grad():
        logits = module.backbone(inputs) @ classifier.T
    assert metrics["global/accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean())
    assert metrics["global/loss"] == pytest.approx(F.cross_entropy(logits, labels).item())
    assert torch.equal(module.head.prototypes(), classifier)


def test_the_global_model_keeps_the_retrained_bias() -> None:
    federation = federate(*CREFF, "head.retrained_bias=true")
    metrics = federation.run_round(1).metrics
    module = federation.global_model(1)
    ((inputs, labels),) = federation.data.test.batches(1000)
    classifier = federation.server.broadcast(1).extras["head"]["retrained"]
    assert classifier[:, -1].abs().max() > 0
    with torch.no_grad():
        logits = module.backbone(inputs) @ classifier[:, :-1].T + classifier[:, -1]
    assert metrics["global/loss"] == pytest.approx(F.cross_entropy(logits, labels).item())
    assert torch.equal(module.head.prototypes(), classifier[:, :-1])


def test_the_bytes_sent_are_counted() -> None:
    plain, creff = federate(*SMALL), federate(*CREFF)
    matrix = 4 * plain.server.weights["head.linear.weight"].numel()
    one, other = plain.run_round(1).metrics, creff.run_round(1).metrics
    cohort = creff.sampler.select(1)
    held = sum(int((creff.data.clients[client].class_counts > 0).sum()) for client in cohort)
    assert other["cost/download_bytes"] - one["cost/download_bytes"] == len(cohort) * matrix
    upload = other["cost/upload_bytes"] - one["cost/upload_bytes"]
    assert upload == held * matrix + len(cohort) * 10 * 4


def test_a_restored_server_goes_on_with_the_same_bits() -> None:
    whole, resumed = federate(*CREFF), federate(*CREFF)
    for round in (1, 2):
        whole.run_round(round)
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    for federation in (whole, resumed):
        federation.run_round(3)
    some, others = (f.server.broadcast(4) for f in (whole, resumed))
    assert equal(some.weights, others.weights)
    assert equal(some.extras["head"], others.extras["head"])


@pytest.mark.parametrize(
    "override", ["head.features=0", "head.match_lr=0", "head.draws=-1", "head.retrain_epochs=x"]
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=rf"^{override}: should be"):
        federate(*CREFF, override)
