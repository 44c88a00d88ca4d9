import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from federations import begin_client, federate
from torch import Tensor
from torch.func import grad, vmap

from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.prototypes import consistent_prototypes, relational_prototypes
from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.losses.semantic import Distance, RpclCpdr, cpdr, rpcl

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]

# Three clients, four classes: class 2 is held by one client, class 3 by nobody.
HOLDS = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
LABELS = torch.tensor([0, 1, 2, 3, 0])


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def example() -> tuple[Tensor, Tensor]:
    """Five features [5, 6], and relational prototypes [3, 4, 6] for ``HOLDS``."""
    return draw(5, 6), draw(3, 4, 6, seed=1).masked_fill(~HOLDS.unsqueeze(-1), 0)


def slow_rpcl(z: Tensor, y: Tensor, r: Tensor, holds: Tensor, tau: float, spread: Tensor) -> float:
    """The loss with U = ``spread`` [K, C], sample by sample and prototype by prototype."""
    losses = []
    for feature, label in zip(z, y.tolist(), strict=True):
        own = total = 0.0
        for k, j in holds.nonzero().tolist():
            norms = math.hypot(*feature.tolist()) * math.hypot(*r[k, j].tolist())
            similarity = float(feature @ r[k, j]) / norms / float(spread[k, j])
            total += math.exp(similarity / tau)
            own += math.exp(similarity / tau) if j == label else 0.0
        if own:
            losses.append(-math.log(own / total))
    return sum(losses) / len(losses)


def slow_spread(z: Tensor, r: Tensor) -> Tensor:
    spread = torch.zeros(r.shape[:2], dtype=torch.float64)
    for k in range(len(r)):
        for j in range(r.shape[1]):
            spread[k, j] = sum(math.dist(q.tolist(), r[k, j].tolist()) for q in z) / len(z)
    return spread


def gradient(loss: Tensor, z: Tensor) -> Tensor:
    return torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize("normalizer", ["batch", "none", "given"])
@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_rpcl_agrees_with_loops(tau: float, normalizer: Literal["batch", "none"]) -> None:
    z, r = example()
    spread = {
        "batch": slow_spread(z, r),
        "none": torch.ones(3, 4, dtype=torch.float64),
        "given": 1 + draw(3, 4).abs(),
    }[normalizer]
    argument = normalizer if normalizer in ("batch", "none") else spread
    value = rpcl(z, LABELS, r, HOLDS, tau, argument)
    assert value.item() == pytest.approx(slow_rpcl(z, LABELS, r, HOLDS, tau, spread), rel=1e-9)


def test_rpcl_defaults() -> None:
    z, r = example()
    assert torch.equal(rpcl(z, LABELS, r, HOLDS), rpcl(z, LABELS, r, HOLDS, 0.05, "batch"))


def test_rpcl_gradient_by_finite_differences_of_the_loops() -> None:
    # U stays that of the unmoved features: it is a constant for the gradient
    z, r = example()
    z.requires_grad_()
    slopes = gradient(rpcl(z, LABELS, r, HOLDS, 0.3), z)
    frozen, step = slow_spread(z.detach(), r), 1e-6
    for i in range(5):
        for dimension in range(6):
            values = []
            for sign in (1, -1):
                moved = z.detach().clone()
                moved[i, dimension] += sign * step
                values.append(slow_rpcl(moved, LABELS, r, HOLDS, 0.3, frozen))
            slope = (values[0] - values[1]) / (2 * step)
            assert slopes[i, dimension].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("normalizer", ["batch", "none"])
def test_rpcl_pulls_to_the_own_class_and_pushes_from_the_other(
    normalizer: Literal["batch", "none"],
) -> None:
    own, other = torch.tensor([[1.0, 0.0], [2.0, 0.2]]), torch.tensor([[0.0, 1.0], [-1.0, 1.0]])
    relational, holds = torch.stack([own, other], dim=1), torch.ones(2, 2, dtype=torch.bool)
    z = torch.tensor([[1.0, 1.0]], requires_grad=True)
    loss = rpcl(z, torch.tensor([0]), relational, holds, 0.05, normalizer)
    moved = z - 1e-3 * gradient(loss, z)
    assert (F.cosine_similarity(moved, own) > F.cosine_similarity(z, own)).all()
    assert (F.cosine_similarity(moved, other) < F.cosine_similarity(z, other)).all()


@pytest.mark.parametrize("normalizer", ["batch", "none"])
@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_rpcl_moves_every_sample_that_has_a_prototype(
    length: float, normalizer: Literal["batch", "none"]
) -> None:
    r = draw(3, 4, 64, seed=1).float() * length
    z = (draw(20, 64).float() * length).requires_grad_()
    loss = rpcl(z, torch.arange(20) % 4, r, HOLDS, normalizer=normalizer)
    moved = gradient(loss, z).norm(dim=1) > 0
    assert moved.tolist() == [label != 3 for label in range(4)] * 5


@pytest.mark.parametrize("term", ["rpcl", "cpdr"])
def test_samples_without_a_prototype_are_left_out(term: str) -> None:
    z, r = example()
    known = HOLDS.any(dim=0)

    def loss(z: Tensor, y: Tensor, holds: Tensor) -> Tensor:
        return rpcl(z, y, r, holds, 0.05, "none") if term == "rpcl" else cpdr(z, y, r[0], holds)

    holds = HOLDS if term == "rpcl" else known
    z.requires_grad_()
    whole = loss(z, LABELS, holds)
    kept = known[LABELS]
    assert kept.tolist() == [True, True, True, False, True]
    torch.testing.assert_close(whole, loss(z[kept], LABELS[kept], holds))
    assert not gradient(whole, z)[~kept].any()

    nothing = loss(z, LABELS, torch.zeros_like(holds))
    assert nothing.item() == 0
    assert torch.equal(gradient(nothing, z), torch.zeros_like(z))


def test_a_feature_on_its_prototype_gives_numbers() -> None:
    # U of the prototype it stands on is 0
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    relational = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    loss = rpcl(z, torch.tensor([0]), relational, torch.ones(1, 2, dtype=torch.bool))
    assert loss.isfinite()
    assert gradient(loss, z).isfinite().all()


# z = (1, 3), o = (0, 1): the difference is (1, 2).
@pytest.mark.parametrize(
    ("distance", "value", "slopes"),
    [
        ("mse", 2.5, [1.0, 2.0]),
        ("l1", 3.0, [1.0, 1.0]),
        ("l2", math.sqrt(5), [1 / math.sqrt(5), 2 / math.sqrt(5)]),
    ],
)
def test_cpdr_by_hand(distance: Distance, value: float, slopes: list[float]) -> None:
    z = torch.tensor([[1.0, 3.0], [5.0, 5.0]], dtype=torch.float64, requires_grad=True)
    consistent = torch.tensor([[9.0, 9.0], [0.0, 1.0], [7.0, 7.0]], dtype=torch.float64)
    loss = cpdr(z, torch.tensor([1, 2]), consistent, torch.tensor([True, True, False]), distance)
    assert loss.item() == pytest.approx(value)
    known, unknown = gradient(loss, z).tolist()
    assert known == pytest.approx(slopes)
    assert unknown == [0, 0]


@pytest.mark.parametrize("distance", ["mse", "l1", "l2"])
def test_cpdr_is_a_mean_and_rests_on_the_prototype(distance: Distance) -> None:
    z = torch.tensor([[1.0, 3.0], [0.0, 1.0]], requires_grad=True)
    consistent, y, holds = torch.tensor([[0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([True])
    loss = cpdr(z, y, consistent, holds, distance)
    assert loss.item() == pytest.approx(cpdr(z[:1], y[:1], consistent, holds, distance).item() / 2)
    assert gradient(loss, z)[1].tolist() == [0, 0]


# The part.


def part(
    rpcl_weight: float = 1.0,
    cpdr_weight: float = 1.0,
    normalizer: Literal["batch", "none", "dataset"] = "batch",
) -> RpclCpdr:
    loss = RpclCpdr(1.0, rpcl_weight, cpdr_weight, 0.05, normalizer, "mse", 2, "angle")
    loss.setup(Setting(0, 1, 4, 6, 9, 3, torch.ones(9, 4), {}))
    return loss


def update(client: int, counts: Sequence[int]) -> Update:
    report = {"prototypes": draw(4, 6, seed=client), "counts": torch.tensor(counts)}
    return Update(client, sum(counts), {}, {"loss": report})


COHORT = [update(7, [3, 0, 2, 0]), update(2, [1, 4, 0, 0]), update(5, [0, 9, 0, 0])]


def served(*cohorts: Sequence[Update]) -> RpclCpdr:
    """A part whose server half saw these cohorts, and whose client half heard of it."""
    loss = part()
    for cohort in cohorts:
        loss.aggregate(cohort)
    loss.receive(Message(1, {}, {"loss": loss.broadcast(1)}))
    return loss


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_server_sends_what_the_functions_say_in_the_order_of_clients() -> None:
    sent = served(COHORT).broadcast(2)
    reports = [one.extras["loss"] for one in (COHORT[1], COHORT[2], COHORT[0])]
    counts = torch.stack([report["counts"] for report in reports])
    relational, holds = relational_prototypes(
        torch.stack([report["prototypes"] for report in reports]), counts
    )
    consistent, consistent_holds = consistent_prototypes(relational, counts)
    assert equal(
        sent,
        {
            "relational": relational,
            "holds": holds,
            "consistent": consistent,
            "consistent_holds": consistent_holds,
        },
    )


def test_the_order_of_updates_changes_nothing() -> None:
    assert equal(served(COHORT).broadcast(2), served(COHORT[::-1]).broadcast(2))


def test_a_class_that_vanishes_keeps_its_prototypes() -> None:
    # the second cohort is smaller and has classes 1 and 3 only
    second = [update(1, [0, 5, 0, 1])]
    old, fresh = served(COHORT).broadcast(2), served(second).broadcast(2)
    both = served(COHORT, second).broadcast(3)
    assert both["relational"].shape == (3, 4, 6)
    assert both["holds"].T.tolist() == [
        [True, False, True],  # rows 2 and 7 of the first cohort
        [True, False, False],  # the only client of the second
        [False, False, True],
        [True, False, False],
    ]
    for kept in (0, 2):
        assert torch.equal(both["relational"][:, kept], old["relational"][:, kept])
        assert torch.equal(both["consistent"][kept], old["consistent"][kept])
    for renewed in (1, 3):
        assert torch.equal(both["relational"][:1, renewed], fresh["relational"][:, renewed])
        assert not both["relational"][1:, renewed].any()
        assert torch.equal(both["consistent"][renewed], fresh["consistent"][renewed])
    assert both["consistent_holds"].all()


def test_a_larger_cohort_makes_room() -> None:
    both = served(COHORT[:1], [update(k, [0, 1, 0, 0]) for k in (1, 2, 3)]).broadcast(3)
    assert both["holds"].tolist() == [
        [True, True, True, False],
        [False, True, False, False],
        [False, True, False, False],
    ]


def test_a_lost_cohort_changes_nothing() -> None:
    assert equal(served(COHORT, []).broadcast(3), served(COHORT).broadcast(3))
    assert served([]).broadcast(2) == {}


def test_the_server_half_finds_its_state_again() -> None:
    first, second = served(COHORT), part()
    second.load_server_state(first.server_state())
    last = [update(1, [0, 5, 0, 1])]
    for loss in (first, second):
        loss.aggregate(last)
    assert equal(first.broadcast(3), second.broadcast(3))
    assert part().server_state() == {}


def test_the_loss_is_the_weighted_sum() -> None:
    loss = served(COHORT)
    loss.ce_weight, loss.rpcl_weight, loss.cpdr_weight = 0.5, 2.0, 3.0
    z, logits = draw(5, 6), draw(5, 4, seed=1)
    sent = loss.broadcast(2)
    expected = (
        0.5 * F.cross_entropy(logits, LABELS)
        + 2 * rpcl(z, LABELS, sent["relational"], sent["holds"])
        + 3 * cpdr(z, LABELS, sent["consistent"], sent["consistent_holds"])
    )
    torch.testing.assert_close(loss(Forward(z, logits, LABELS)), expected)


def test_without_prototypes_it_is_cross_entropy() -> None:
    loss, batch = served(COHORT), Forward(draw(5, 6), draw(5, 4, seed=1), LABELS)
    plain = F.cross_entropy(batch.logits, batch.targets)
    assert not torch.equal(loss(batch), plain)
    loss.receive(Message(1, {}))
    assert torch.equal(loss(batch), plain)


def test_its_buffers_are_not_part_of_the_model() -> None:
    assert served(COHORT).state_dict() == {}
    assert {name for name, _ in part().named_buffers()} == {
        "relational",
        "holds",
        "consistent",
        "consistent_holds",
        "spread",
    }


@pytest.mark.parametrize("normalizer", ["batch", "none", "dataset"])
def test_clients_can_be_stacked(normalizer: Literal["batch", "none", "dataset"]) -> None:
    loss = part(normalizer=normalizer)
    loss.aggregate(COHORT)
    loss.receive(Message(2, {}, {"loss": loss.broadcast(2)}))
    loss.spread = 1 + draw(3, 4).abs()
    z, y = draw(2, 5, 6), torch.stack([LABELS, LABELS.flip(0)])
    logits = draw(2, 5, 4, seed=1)

    def objective(z: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        value: Tensor = loss(Forward(z, logits, y))
        return value

    stacked = vmap(grad(objective))(z, logits, y)
    apart = torch.stack([grad(objective)(z[k], logits[k], y[k]) for k in range(2)])
    torch.testing.assert_close(stacked, apart)


# In a federation.


def rounds(federation: Federation, count: int) -> list[dict[str, float]]:
    return [dict(federation.run_round(round).metrics) for round in range(1, count + 1)]


def test_the_first_round_is_fedavg_and_later_ones_are_not() -> None:
    fedavg, fedsc = (federate(*SMALL, f"algorithm={name}") for name in ("fedavg", "fedsc"))
    for round in (1, 2, 3):
        metrics = fedsc.run_round(round).metrics
        fedavg.run_round(round)
        assert math.isfinite(metrics["train/loss"])
        assert equal(fedavg.server.weights, fedsc.server.weights) == (round == 1)


def test_what_travels_is_counted() -> None:
    plain, fedsc = (rounds(federate(*SMALL, f"algorithm={n}"), 2) for n in ("fedavg", "fedsc"))
    width = federate(*SMALL).server.weights["head.linear.weight"].shape[1]
    report = 10 * width * 4 + 10 * 8
    sent = 4 * 10 * (width * 4 + 1) + 10 * (width * 4 + 1)
    for round, download in ((0, 0), (1, 4 * sent)):
        extra = {name: fedsc[round][name] - plain[round][name] for name in plain[0]}
        assert extra["cost/upload_bytes"] == 4 * report
        assert extra["cost/download_bytes"] == download


def test_the_cohort_may_change_its_size() -> None:
    federation = federate(*SMALL, "algorithm=fedsc")
    seen = []
    for round, cohort in enumerate(([0, 1], [2, 3, 4], [5]), start=1):
        message = federation.server.broadcast(round)
        federation.server.aggregate(federation.engine.train(cohort, message))
        seen.append(len(federation.server.broadcast(round).extras["loss"]["holds"]))
    assert seen == [2, 3, 3]
    assert all(weight.isfinite().all() for weight in federation.server.weights.values())


def test_the_reports_are_the_class_means_of_the_trained_model() -> None:
    federation = federate(*SMALL, "algorithm=fedsc")
    (sent,) = federation.engine.train([2], federation.server.broadcast(1))
    module = federation.engine.resources.module.eval()
    ((inputs, labels),) = module.data.batches(1000)
    with torch.no_grad():
        z = module.backbone(inputs)
    report = sent.extras["loss"]
    assert torch.equal(report["counts"], module.data.class_counts)
    for label in report["counts"].nonzero().flatten().tolist():
        torch.testing.assert_close(report["prototypes"][label], z[labels == label].mean(dim=0))


def test_the_dataset_normalizer_is_of_the_received_model() -> None:
    federation = federate(*SMALL, "algorithm=fedsc", "loss.normalizer=dataset")
    federation.run_round(1)
    engine: Any = federation.engine
    message = federation.server.broadcast(2)
    module = begin_client(engine, 3, message)
    ((inputs, _),) = module.data.batches(1000)
    with torch.no_grad():
        z = module.backbone(inputs)
    expected = slow_spread(z, message.extras["loss"]["relational"]).float()
    torch.testing.assert_close(module.loss.spread, expected, rtol=1e-4, atol=1e-4)
    assert math.isfinite(federation.run_round(2).metrics["train/loss"])


@pytest.mark.parametrize(
    "override", ["loss.temperature=0", "loss.metric=angles", "loss.neighbors=-1"]
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        federate(*SMALL, "algorithm=fedsc", override)
