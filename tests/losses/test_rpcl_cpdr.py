import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw64
from support.federations import begin_client, equal, federate, take_step
from torch import Tensor
from torch.func import grad, vmap

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.prototypes import consistent_prototypes, relational_prototypes
from fedexp.errors import InputError
from fedexp.losses.rpcl_cpdr import RpclCpdr
from fedexp.losses.semantic import Normalizer, cpdr, rpcl
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]
LABELS = torch.tensor([0, 1, 2, 3, 0])


def make(
    rpcl_weight: float = 1.0,
    cpdr_weight: float = 1.0,
    normalizer: Normalizer | Literal["dataset"] = "batch",
) -> RpclCpdr:
    loss = RpclCpdr(1.0, rpcl_weight, cpdr_weight, 0.05, normalizer, "mse", 2, "angle")
    loss.setup(Setting(0, 1, 4, 6, 9, 3, Clients.of(torch.ones(9, 4)), Model({})))
    return loss


def update(client: int, counts: Sequence[int]) -> PartUpdate:
    report = {"prototypes": draw64(4, 6, seed=client), "counts": torch.tensor(counts)}
    return PartUpdate(client, sum(counts), {}, report)


COHORT = [update(2, [1, 4, 0, 0]), update(5, [0, 9, 0, 0]), update(7, [3, 0, 2, 0])]


def served(*cohorts: Sequence[PartUpdate]) -> RpclCpdr:
    """A loss that has aggregated these cohorts and received the result."""
    loss = make()
    for cohort in cohorts:
        loss.aggregate(cohort)
    loss.receive(PartMessage(1, {}, loss.broadcast(1)))
    return loss


def test_the_server_sends_both_kinds_of_prototypes() -> None:
    sent = served(COHORT).broadcast(2)
    reports = [one.extras for one in COHORT]
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


def test_a_class_that_the_cohort_lacks_keeps_its_prototypes() -> None:
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


def test_a_larger_cohort_adds_rows() -> None:
    both = served(COHORT[2:], [update(k, [0, 1, 0, 0]) for k in (1, 2, 3)]).broadcast(3)
    assert both["holds"].tolist() == [
        [True, True, True, False],
        [False, True, False, False],
        [False, True, False, False],
    ]


def test_the_server_state_is_restored() -> None:
    first, second = served(COHORT), make()
    second.load_server_state(first.server_state())
    last = [update(1, [0, 5, 0, 1])]
    for loss in (first, second):
        loss.aggregate(last)
    assert equal(first.broadcast(3), second.broadcast(3))
    assert make().server_state() == {}


def test_the_loss_is_the_weighted_sum() -> None:
    loss = served(COHORT)
    loss.ce_weight, loss.rpcl_weight, loss.cpdr_weight = 0.5, 2.0, 3.0
    z, logits = draw64(5, 6), draw64(5, 4, seed=1)
    sent = loss.broadcast(2)
    expected = (
        0.5 * F.cross_entropy(logits, LABELS)
        + 2 * rpcl(z, LABELS, sent["relational"], sent["holds"])
        + 3 * cpdr(z, LABELS, sent["consistent"], sent["consistent_holds"])
    )
    torch.testing.assert_close(loss(Forward(z, logits, LABELS)), expected)


def test_without_prototypes_it_is_cross_entropy() -> None:
    loss, batch = served(COHORT), Forward(draw64(5, 6), draw64(5, 4, seed=1), LABELS)
    plain = F.cross_entropy(batch.logits, batch.targets)
    assert not torch.equal(loss(batch), plain)
    loss.receive(PartMessage(1, {}))
    assert torch.equal(loss(batch), plain)


def test_its_buffers_are_not_part_of_the_model() -> None:
    assert served(COHORT).state_dict() == {}
    assert {name for name, _ in make().named_buffers()} == {
        "relational",
        "holds",
        "consistent",
        "consistent_holds",
        "spread",
    }


@pytest.mark.parametrize("normalizer", ["batch", "none", "dataset", "unit"])
def test_clients_can_be_stacked(normalizer: Normalizer | Literal["dataset"]) -> None:
    loss = make(normalizer=normalizer)
    loss.aggregate(COHORT)
    loss.receive(PartMessage(2, {}, loss.broadcast(2)))
    loss.spread = 1 + draw64(3, 4).abs()
    z, y = draw64(2, 5, 6), torch.stack([LABELS, LABELS.flip(0)])
    logits = draw64(2, 5, 4, seed=1)

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


def test_the_bytes_sent_are_counted() -> None:
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
        take_step(federation.server, federation.engine.train(cohort, message))
        seen.append(len(federation.server.broadcast(round).extras["loss"]["holds"]))
    assert seen == [2, 3, 3]
    assert all(weight.isfinite().all() for weight in federation.server.weights.values())


def test_the_reports_are_the_class_means_of_the_trained_model() -> None:
    federation = federate(*SMALL, "algorithm=fedsc")
    (sent,) = federation.engine.train([2], federation.server.broadcast(1))
    module = federation.module.eval()
    ((inputs, labels),) = module.data.batches(1000)
    with torch.no_grad():
        z = module.backbone(inputs)
    report = sent.extras["loss"]
    assert torch.equal(report["counts"], module.data.class_counts)
    for label in report["counts"].nonzero().flatten().tolist():
        torch.testing.assert_close(report["prototypes"][label], z[labels == label].mean(dim=0))


def test_the_dataset_normalizer_is_the_mean_distance_under_the_received_model() -> None:
    """Over all of the client's samples, also after the model has been trained (FedSC Eq. 13)."""
    federation = federate(*SMALL, "algorithm=fedsc", "loss.normalizer=dataset")
    federation.run_round(1)
    engine: Any = federation.engine
    message = federation.server.broadcast(2)
    (update,) = engine.train([3], message)
    spread = federation.module.loss.spread.clone()
    assert not spread.requires_grad

    backbone = engine.resources.load_global(message).eval().backbone
    relational = message.extras["loss"]["relational"]
    features = []
    for inputs, _ in federation.data.clients[3].batches(1):
        with torch.no_grad():
            features.append(backbone(inputs)[0].tolist())
    assert len(features) == update.num_samples
    for k, j in message.extras["loss"]["holds"].nonzero().tolist():
        total = sum(math.dist(z, relational[k, j].tolist()) for z in features)
        assert spread[k, j].item() == pytest.approx(total / len(features), rel=1e-3)


def test_the_dataset_normalizer_takes_one_pass_in_eval_mode_without_gradient() -> None:
    federation = federate(*SMALL, "algorithm=fedsc", "loss.normalizer=dataset")
    federation.run_round(1)
    engine: Any = federation.engine
    module = federation.module.train()
    passes = []
    module.backbone.register_forward_hook(
        lambda layer, _, z: passes.append((layer.training, z.requires_grad, len(z)))
    )
    module = begin_client(engine, 3, federation.server.broadcast(2))
    assert passes == [(False, False, module.data.num_samples)]


def test_the_dataset_normalizer_is_what_the_loss_divides_by() -> None:
    loss = make(cpdr_weight=0.0, normalizer="dataset")
    loss.aggregate(COHORT)
    loss.receive(PartMessage(2, {}, loss.broadcast(2)))
    client: Any = SimpleNamespace(features=lambda: (draw64(11, 6, seed=5), None))
    loss.begin(client, PartMessage(2, {}), {})
    z, logits = draw64(5, 6), draw64(5, 4, seed=1)
    losses = []
    for feature, label in zip(z, LABELS.tolist(), strict=True):
        own = total = 0.0
        for k, j in loss.holds.nonzero().tolist():
            r = loss.relational[k, j]
            u = sum(math.dist(q.tolist(), r.tolist()) for q in draw64(11, 6, seed=5)) / 11
            cosine = float(feature @ r) / math.hypot(*feature.tolist()) / math.hypot(*r.tolist())
            term = math.exp(cosine / u / 0.05)
            total += term
            own += term if j == label else 0.0
        if own:
            losses.append(-math.log(own / total))
    expected = F.cross_entropy(logits, LABELS).item() + sum(losses) / len(losses)
    assert loss(Forward(z, logits, LABELS)).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "override", ["loss.temperature=0", "loss.metric=angles", "loss.neighbors=-1"]
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        federate(*SMALL, "algorithm=fedsc", override)
