import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate, take_step
from torch import Tensor

from fedexp.core.messages import PartMessage, PartUpdate
from fedexp.core.randomness import torch_generator
from fedexp.heads.prototype import Prototype, maximin_prototypes, update_prototypes
from fedexp.heads.sphere import Scale, orthogonal_directions, random_directions

SMALL = ["clients.count=6", "clients.per_round=4", "local.epochs=2"]


def prototype(feature_dim: int = 2, num_classes: int = 4, **options: Any) -> Prototype:
    defaults: dict[str, Any] = {
        "scale": Scale(init=20, trainable=True),
        "normalize_features": True,
        "init": "maximin",
        "rho": 0.6,
        "weighting": "count",
        "renormalize_clients": False,
        "augmented_means": False,
    }
    return Prototype(feature_dim, num_classes, **(defaults | options))


def smallest_angle(rows: Tensor) -> float:
    """Over all pairs, in degrees."""
    cosines = rows.double() @ rows.double().T
    return math.degrees(math.acos(cosines.fill_diagonal_(-1).max().clamp(-1, 1)))


# Problem (1).


@pytest.mark.parametrize(
    ("num_classes", "dim", "degrees"),
    [
        (2, 2, 180),
        (10, 64, math.degrees(math.acos(-1 / 9))),  # a simplex
        (4, 3, math.degrees(math.acos(-1 / 3))),
        (3, 2, 120),  # the circle
        (6, 2, 60),
        (10, 2, 36),
        (6, 3, 90),  # the octahedron
        (5, 3, 90),
        (200, 100, 90),
        (12, 3, 63.4349488),  # the icosahedron
        (8, 3, 74.8584922),  # the square antiprism
    ],
)
def test_the_smallest_angle_is_the_known_optimum(
    num_classes: int, dim: int, degrees: float
) -> None:
    rows = maximin_prototypes(num_classes, dim, torch_generator(0, "test"))
    assert rows.shape == (num_classes, dim)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(num_classes))
    assert smallest_angle(rows) == pytest.approx(degrees, abs=0.03)


@pytest.mark.parametrize(("num_classes", "dim"), [(200, 100), (100, 40), (20, 5)])
def test_it_beats_random_and_orthogonal_directions(num_classes: int, dim: int) -> None:
    rows, *others = (
        smallest_angle(make(num_classes, dim, torch_generator(0, "test")))
        for make in (maximin_prototypes, random_directions, orthogonal_directions)
    )
    assert rows > max(others) + 10


@pytest.mark.parametrize(("num_classes", "dim"), [(4, 6), (7, 2), (6, 4), (12, 3)])
def test_the_prototypes_depend_on_the_generator_alone(num_classes: int, dim: int) -> None:
    one, same, other = (
        maximin_prototypes(num_classes, dim, torch_generator(seed, "test")) for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("init", ["maximin", "orthogonal", "random"])
@pytest.mark.parametrize(("num_classes", "dim"), [(4, 8), (8, 3)])
def test_every_start_has_unit_rows(init: str, num_classes: int, dim: int) -> None:
    rows = prototype(dim, num_classes, init=init).prototypes()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(num_classes))
    if init == "orthogonal" and num_classes <= dim:
        torch.testing.assert_close(rows @ rows.T, torch.eye(num_classes), atol=1e-6, rtol=0)


# The logits.


def test_logits_are_scaled_cosines_or_scaled_products_of_raw_features() -> None:
    z = torch.tensor([[3.0, 4.0], [-2.0, 0.0]])
    for normalized, lengths in ((True, (1.0, 1.0)), (False, (5.0, 2.0))):
        head = prototype(scale=Scale(init=7, trainable=False), normalize_features=normalized)
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.6, 0.8]]))
        cosines = [[0.6, 0.8, -0.6, 1.0], [-1.0, 0.0, 1.0, -0.6]]
        expected = [[7 * n * c for c in row] for n, row in zip(lengths, cosines, strict=True)]
        torch.testing.assert_close(head(z), torch.tensor(expected))


def test_rho_1_fixes_the_prototypes_exactly() -> None:
    head = prototype(num_classes=6, rho=1.0, normalize_features=False)
    start = head.broadcast(1)["prototypes"].clone()
    angles = torch.atan2(start[:, 1], start[:, 0])  # evenly on the circle
    steps = (angles.roll(-1) - angles) % (2 * math.pi)
    torch.testing.assert_close(steps, torch.full((6,), math.pi / 3), atol=1e-5, rtol=0)
    for seed in range(30):
        draw = torch_generator(seed, "test")
        z, y = torch.randn(20, 2, generator=draw), torch.randint(0, 6, (20,), generator=draw)
        head.aggregate(updates(head, [(z, y)]))
    assert torch.equal(head.broadcast(31)["prototypes"], start)


# The server's step.

OLD = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.6, 0.8]])
LOCAL = torch.tensor(
    [
        [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.5], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]],
    ]
)
COUNTS = torch.tensor([[1, 5, 3, 0], [1, 0, 1, 0]])


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        # means (0, .75), (1, 0), (.75, .25), made unit, then .6 old + .4 mean
        (
            "count",
            [(0.6, 0.4), (0.4, 0.6), (0.4 * 3 / math.sqrt(10), -0.6 + 0.4 / math.sqrt(10))],
        ),
        # means (0, .75), (.5, 0), (.5, .5), as they are
        ("uniform", [(0.6, 0.3), (0.2, 0.6), (0.2, -0.4)]),
    ],
)
def test_the_update_by_hand(weighting: Any, expected: list[tuple[float, float]]) -> None:
    moved = update_prototypes(OLD, LOCAL, COUNTS, 0.6, weighting)
    for row, (x, y) in zip(moved, expected, strict=False):
        assert row.tolist() == pytest.approx([x / math.hypot(x, y), y / math.hypot(x, y)])
    assert torch.equal(moved[3], OLD[3])
    assert moved.dtype == OLD.dtype


@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_the_update_against_loops(weighting: Any) -> None:
    clients, classes, dim, rho = 5, 7, 6, 0.9
    draw = torch_generator(0, "test")
    old = random_directions(classes, dim, draw)
    counts = torch.randint(0, 3, (clients, classes), generator=draw)
    counts[:, 2] = 0
    local = torch.randn(clients, classes, dim, generator=draw) * (counts > 0).unsqueeze(2) / dim
    moved = update_prototypes(old, local, counts, rho, weighting)
    assert torch.equal(moved[2], old[2])
    for c in (c for c in range(classes) if c != 2):
        mean = [0.0] * dim
        for k in range(clients):
            share = counts[k, c] / counts[:, c].sum() if weighting == "count" else 1 / clients
            mean = [m + float(share * x) for m, x in zip(mean, local[k, c], strict=True)]
        length = math.hypot(*mean) if weighting == "count" else 1
        row = [rho * float(w) + (1 - rho) * m / length for w, m in zip(old[c], mean, strict=True)]
        assert moved[c].tolist() == pytest.approx([x / math.hypot(*row) for x in row], abs=1e-6)


@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_a_class_that_no_client_holds_keeps_its_prototype_bit_for_bit(weighting: Any) -> None:
    start = random_directions(4, 2, torch_generator(0, "test"))
    rows = start
    for _ in range(20):
        rows = update_prototypes(rows, LOCAL, COUNTS, 0.9, weighting)
    assert torch.equal(rows[3], start[3])
    assert not torch.allclose(rows[:3], start[:3], atol=0.1)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))


def updates(head: Prototype, features: list[tuple[Tensor, Tensor]]) -> list[PartUpdate]:
    """What clients with these features and labels report."""
    clients: list[Any] = [
        SimpleNamespace(features=lambda augment, pair=pair: pair) for pair in features
    ]
    return [
        PartUpdate(number, 1, {}, head.report(client, {})) for number, client in enumerate(clients)
    ]


FEATURES = [
    (torch.tensor([[3.0, 4.0], [0.0, 9.0], [2.0, 0.0]]), torch.tensor([0, 0, 1])),
    (torch.tensor([[5.0, 0.0]]), torch.tensor([0])),
]


@pytest.mark.parametrize("renormalize", [False, True])
def test_the_report_by_hand(renormalize: bool) -> None:
    head = prototype(renormalize_clients=renormalize)
    report = updates(head, FEATURES)[0].extras
    x, y = 0.3, 0.9  # the mean of (.6, .8) and (0, 1)
    length = math.hypot(x, y) if renormalize else 1
    assert report["prototypes"][0].tolist() == pytest.approx([x / length, y / length])
    assert report["prototypes"][1:].tolist() == [[1, 0], [0, 0], [0, 0]]
    assert report["counts"].tolist() == [2, 1, 0, 0]


def unit(x: float, y: float) -> tuple[float, float]:
    return x / math.hypot(x, y), y / math.hypot(x, y)


# Class 0: means (.3, .9) of two samples and (1, 0) of one; class 1: (1, 0) of one sample at one
# of the two clients. OLD rows are (1, 0) and (0, 1), rho is .6.
X, Y = unit(0.3, 0.9)
FORMS = {
    "released": (
        {"init": "orthogonal", "weighting": "count", "renormalize_clients": True},
        [unit((2 * X + 1) / 3, 2 * Y / 3), (1.0, 0.0)],
    ),
    "paper": (
        {"init": "maximin", "weighting": "uniform", "renormalize_clients": False},
        [((0.3 + 1) / 2, 0.9 / 2), (1 / 2, 0.0)],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_round_of_the_two_published_forms_by_hand(form: str) -> None:
    options, means = FORMS[form]
    head = prototype(**options)
    head.load_server_state({"prototypes": OLD})
    head.aggregate(updates(head, FEATURES))
    moved = head.broadcast(2)["prototypes"]
    for label, (x, y) in enumerate(means):
        old = OLD[label].tolist()
        expected = unit(0.6 * old[0] + 0.4 * x, 0.6 * old[1] + 0.4 * y)
        assert moved[label].tolist() == pytest.approx(expected)
    assert torch.equal(moved[2:], OLD[2:])


@pytest.mark.parametrize("renormalize", [False, True])
def test_one_round_of_both_halves_by_hand(renormalize: bool) -> None:
    head = prototype(renormalize_clients=renormalize)
    old = head.broadcast(1)["prototypes"]
    head.aggregate(updates(head, FEATURES))
    length = math.hypot(0.3, 0.9) if renormalize else 1
    mean = torch.tensor([(2 * 0.3 / length + 1) / 3, 2 * 0.9 / length / 3])
    first = 0.6 * old[0] + 0.4 * mean / mean.norm()
    second = 0.6 * old[1] + 0.4 * torch.tensor([1.0, 0.0])
    moved = head.broadcast(2)["prototypes"]
    torch.testing.assert_close(moved[0], first / first.norm())
    torch.testing.assert_close(moved[1], second / second.norm())
    assert torch.equal(moved[2:], old[2:])


def test_a_client_copies_what_it_receives() -> None:
    server, client = prototype(), prototype()
    sent = server.broadcast(1)
    client.receive(PartMessage(1, {}, sent))
    assert torch.equal(client.prototypes(), sent["prototypes"])
    client.weight.zero_()  # another model is loaded
    assert torch.equal(server.broadcast(1)["prototypes"], sent["prototypes"])
    assert sent["prototypes"].abs().sum() > 0


# In a federation.


def test_no_gradient_reaches_the_prototypes_and_only_the_scale_is_averaged() -> None:
    federation = federate("algorithm=fednh", *SMALL)
    head: Any = federation.module.head
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    assert {name for name in message.weights if name.startswith("head.")} == {"head.scale"}
    assert update.weights.keys() == message.weights.keys()
    assert not torch.equal(update.weights["head.scale"], message.weights["head.scale"])
    sent = message.extras["head"]["prototypes"]
    assert torch.equal(head.prototypes(), sent)
    assert update.extras["head"]["counts"].sum() == update.num_samples
    assert message.nbytes == sum(w.numel() * 4 for w in message.weights.values()) + sent.nbytes


def test_the_scale_is_the_cohorts_mean() -> None:
    federation = federate("algorithm=fednh", *SMALL)
    trained = list(federation.engine.train([0, 1, 2], federation.server.broadcast(1)))
    take_step(federation.server, trained)
    scales = [update.weights["head.scale"].item() for update in trained]
    assert len(set(scales)) == 3
    assert federation.server.weights["head.scale"].item() == pytest.approx(sum(scales) / 3)


def test_the_global_model_has_the_new_prototypes_and_personal_models_those_they_received() -> None:
    federation = federate("algorithm=fednh", *SMALL)
    first = federation.server.broadcast(1).extras["head"]["prototypes"]
    federation.run_round(1)
    second = federation.server.broadcast(2).extras["head"]["prototypes"]
    assert not torch.allclose(first, second, atol=1e-3)
    store = federation.store
    assert store.clients_with_model
    for client in store.clients_with_model:
        assert torch.equal(store.model(client)["head.weight"], first)
    assert "head.weight" not in federation.server.weights
    assert torch.equal(federation.global_model(1).weights["head.weight"], second)
    torch.testing.assert_close(second.norm(dim=1), torch.ones(10))


def test_prototypes_follow_the_features_of_the_cohort() -> None:
    """A whole round against the definition, from the trained models' features."""
    federation = federate("algorithm=fednh", "head.renormalize_clients=false", *SMALL)
    message = federation.server.broadcast(1)
    old = message.extras["head"]["prototypes"].double()
    sums, trained = torch.zeros(10, old.shape[1], dtype=torch.float64), []
    module = federation.module
    for update in federation.engine.train([0, 3], message):
        trained.append(update)
        (x, y), *_ = module.data.batches(10_000)
        with torch.inference_mode():
            z = F.normalize(module.eval().backbone(x)).double()
        sums.index_add_(0, y, z)
    take_step(federation.server, trained)
    held = torch.stack([u.extras["head"]["counts"] for u in trained]).sum(dim=0) > 0
    expected = torch.where(held.unsqueeze(1), F.normalize(0.9 * old + 0.1 * F.normalize(sums)), old)
    found = federation.server.broadcast(2).extras["head"]["prototypes"]
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_class_means_are_of_augmented_images_on_request(image_tree: Path) -> None:
    images = ["data=image_folder", f"data.root={image_tree}", "model=mlp", "algorithm=fednh"]
    images += ["data.augment=crop_flip", "partition=iid", "clients.count=3", "clients.per_round=3"]
    means = {}
    for augmented in (True, False):
        federation = federate(*images, f"head.augmented_means={augmented}")
        message = federation.server.broadcast(1)
        (update,) = federation.engine.train([2], message)
        module = federation.module.eval()
        data, head = module.data, module.head
        assert isinstance(head, Prototype)
        draws = torch_generator(0, "prototype_features", 1, 2) if augmented else None
        with torch.no_grad():
            z = F.normalize(module.backbone(data.inputs(torch.arange(len(data.labels)), draws)))
        for label in data.labels.unique():
            mean = F.normalize(z[data.labels == label].mean(dim=0), dim=0)
            found = update.extras["head"]["prototypes"][label]
            torch.testing.assert_close(found, mean, atol=1e-5, rtol=0)
        means[augmented] = update.extras["head"]["prototypes"]
    assert not torch.allclose(means[True], means[False], atol=1e-3)


def test_without_augmentation_all_parts_share_one_pass() -> None:
    federation = federate("algorithm=fednh", *SMALL)
    next(iter(federation.engine.train([0], federation.server.broadcast(1))))
    module = federation.module
    assert not module.data.is_augmented
    assert module.features(augment=torch_generator(0, "any")) is module.features()


def test_the_server_state_is_restored() -> None:
    head, restored = prototype(8), prototype(8)
    head.aggregate(updates(head, [(torch.rand(5, 8), torch.tensor([0, 0, 1, 2, 3]))]))
    restored.load_server_state(head.server_state())
    assert torch.equal(restored.broadcast(1)["prototypes"], head.broadcast(1)["prototypes"])


def test_it_learns() -> None:
    federation = federate("algorithm=fednh", *SMALL, "measure.personal.every=2")
    metrics = [federation.run_round(round).metrics for round in (1, 2)][-1]
    assert math.isfinite(metrics["train/loss"])
    assert math.isfinite(metrics["global/loss"])
    assert metrics["global/accuracy"] > 0.5
    assert metrics["personal/accuracy_local"] > 0.5
