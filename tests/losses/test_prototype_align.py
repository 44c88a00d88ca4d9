import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.federations import equal, federate
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, PartUpdate
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.losses.prototype_align import PrototypeAlign
from fedexp.losses.prototype_loss import Weighting, mean_prototypes

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=1"]


def test_the_mean_of_prototypes_by_hand() -> None:
    # class 0: (3 * 2 + 1 * 6) / 4 = 3; class 1: the second client's alone; class 2: nobody's
    prototypes = torch.tensor([[[2.0], [9.0], [9.0]], [[6.0], [5.0], [9.0]]])
    means, holds = mean_prototypes(prototypes, torch.tensor([[3, 0, 0], [1, 7, 0]]))
    assert means.flatten().tolist() == [3, 5, 0]
    assert holds.tolist() == [True, True, False]


def test_the_mean_of_prototypes_is_the_mean_of_all_samples() -> None:
    features = [draw(n, 3, seed=n) for n in (2, 5, 4)]
    prototypes = torch.stack([each.mean(dim=0) for each in features]).unsqueeze(1)
    means, _ = mean_prototypes(prototypes, torch.tensor([[2], [5], [4]]))
    torch.testing.assert_close(means[0], torch.cat(features).mean(dim=0))


def test_the_unweighted_mean_of_prototypes_by_hand() -> None:
    # class 0: (2 + 6) / 2 whatever the counts; class 1: the second client's alone; class 2: none
    prototypes = torch.tensor([[[2.0], [9.0], [9.0]], [[6.0], [5.0], [9.0]]])
    counts = torch.tensor([[3, 0, 0], [1, 7, 0]])
    means, holds = mean_prototypes(prototypes, counts, "uniform")
    assert means.flatten().tolist() == [4, 5, 0]
    assert holds.tolist() == [True, True, False]


# The loss: four classes, d = 2.


def make(
    lam: float = 1.0,
    weighting: Weighting = "samples",
    first: Literal["none", "random"] = "none",
    seed: int = 0,
    missing: Literal["exclude", "zero"] = "exclude",
) -> PrototypeAlign:
    loss = PrototypeAlign(lam, missing, weighting, first, "trained")
    loss.setup(Setting(seed, 1, 4, 2, 9, 3, Clients.of(torch.ones(9, 4)), Model({})))
    return loss


def update(client: int, counts: Sequence[int]) -> PartUpdate:
    report = {"prototypes": draw(4, 2, seed=client), "counts": torch.tensor(counts)}
    return PartUpdate(client, sum(counts), {}, report)


COHORT = [update(2, [1, 4, 0, 0]), update(5, [0, 9, 0, 0]), update(7, [3, 0, 2, 0])]


def served(*cohorts: Sequence[PartUpdate], **options: Any) -> PrototypeAlign:
    """A loss that has aggregated these cohorts and received the result."""
    loss = make(**options)
    for cohort in cohorts:
        loss.aggregate(cohort)
    loss.receive(PartMessage(1, {}, loss.broadcast(1)))
    return loss


@pytest.mark.parametrize(("missing", "counted"), [("exclude", 2), ("zero", 3)])
def test_value_and_gradient_by_hand(missing: Literal["exclude", "zero"], counted: int) -> None:
    loss = make(lam=0.5, missing=missing)
    sent = {
        "prototypes": torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [9.0, 9.0]]),
        "holds": torch.tensor([True, True, False, True]),
    }
    loss.receive(PartMessage(2, {}, sent))
    # differences (1, 2) and (2, 0), their mean squares 5/2 and 2; class 2 has no prototype
    z = torch.tensor([[1.0, 3.0], [2.0, 0.0], [4.0, 4.0]], requires_grad=True)
    logits = torch.zeros(3, 4, requires_grad=True)
    found = loss(Forward(z, logits, torch.tensor([1, 0, 2])))
    assert found.item() == pytest.approx(math.log(4) + 0.5 * (2.5 + 2) / counted)
    by_z, by_logits = torch.autograd.grad(found, (z, logits))
    # lam / samples * 2 / d * difference
    expected = torch.tensor([[0.5, 1.0], [1.0, 0.0], [0.0, 0.0]]) / counted
    torch.testing.assert_close(by_z, expected)
    onehot = F.one_hot(torch.tensor([1, 0, 2]), 4)
    torch.testing.assert_close(by_logits, (0.25 - onehot) / 3)


def test_missing_prototypes_as_released() -> None:
    """The released code's mean squared error to the feature itself where there is no prototype."""
    loss = make(lam=0.7, missing="zero")
    holds = torch.tensor([True, False, True, False])
    prototypes = draw(4, 2, seed=3)
    loss.receive(PartMessage(2, {}, {"prototypes": prototypes, "holds": holds}))
    z, y = draw(6, 2, seed=4).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1])
    logits = draw(6, 4, seed=5)
    target = z.detach().clone()
    for row, label in enumerate(y.tolist()):
        if holds[label]:
            target[row] = prototypes[label]
    expected = F.cross_entropy(logits, y) + 0.7 * F.mse_loss(z, target)
    found = loss(Forward(z, logits, y))
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(each, z)[0] for each in (found, expected)]
    torch.testing.assert_close(*slopes)
    real = torch.tensor([1.0, 1, 1, 1, 0, 0])  # the last two are padding
    kept = F.cross_entropy(logits[:4], y[:4]) + 0.7 * F.mse_loss(z[:4], target[:4])
    torch.testing.assert_close(loss(Forward(z, logits, y, real)), kept)


def test_the_server_sends_the_weighted_mean_of_the_cohort() -> None:
    sent, reports = served(COHORT).broadcast(2), [one.extras for one in COHORT]
    expected = torch.zeros(4, 2)
    for label in range(3):
        for report in reports:
            share = report["counts"][label] / sum(r["counts"][label] for r in reports)
            expected[label] += share * report["prototypes"][label]
    torch.testing.assert_close(sent["prototypes"], expected)
    assert sent["holds"].tolist() == [True, True, True, False]


def test_a_class_that_the_cohort_lacks_keeps_its_prototype() -> None:
    second = [update(1, [0, 5, 0, 1])]
    old, fresh = served(COHORT).broadcast(2), served(second).broadcast(2)
    both = served(COHORT, second).broadcast(3)
    expected = [old, fresh, old, fresh]
    for label, source in enumerate(expected):
        assert torch.equal(both["prototypes"][label], source["prototypes"][label])
    assert both["holds"].all()


def test_the_server_state_is_restored(tmp_path: Path) -> None:
    first, second = served(COHORT), make()
    torch.save(first.server_state(), tmp_path / "state.pt")
    second.load_server_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for loss in (first, second):
        loss.aggregate([update(1, [0, 5, 0, 1])])
    assert equal(first.broadcast(3), second.broadcast(3))
    assert make().server_state() == {}


def test_without_prototypes_it_is_cross_entropy() -> None:
    loss, batch = served(COHORT), Forward(draw(3, 2), draw(3, 4), torch.tensor([0, 1, 2]))
    plain = F.cross_entropy(batch.logits, batch.targets)
    assert loss(batch) > plain + 0.1
    loss.receive(PartMessage(1, {}))
    torch.testing.assert_close(loss(batch), plain)


def test_its_buffers_are_not_part_of_the_model() -> None:
    assert make().state_dict() == {}
    assert {name for name, _ in make().named_buffers()} == {"prototypes", "holds"}


def test_uniform_weighting_reaches_the_server() -> None:
    sent = served(COHORT, weighting="uniform").broadcast(2)["prototypes"]
    # class 0 is held by clients 7 and 2, class 1 by 2 and 5, class 2 by 7 alone
    own = {update.client: update.extras["prototypes"] for update in COHORT}
    torch.testing.assert_close(sent[0], (own[7][0] + own[2][0]) / 2)
    torch.testing.assert_close(sent[1], (own[2][1] + own[5][1]) / 2)
    torch.testing.assert_close(sent[2], own[7][2])


def test_random_first_prototypes_act_in_the_first_round() -> None:
    loss = served(first="random", lam=0.5)
    sent = loss.broadcast(1)
    assert sent["holds"].all()
    assert ((sent["prototypes"] >= 0) & (sent["prototypes"] <= 1)).all()
    z, y = draw(3, 2), torch.tensor([0, 1, 3])
    logits = draw(3, 4)
    expected = F.cross_entropy(logits, y) + 0.5 * F.mse_loss(z, sent["prototypes"][y])
    torch.testing.assert_close(loss(Forward(z, logits, y)), expected)


def test_random_first_prototypes_are_uniform_and_depend_on_the_seed() -> None:
    wide = PrototypeAlign(1.0, "exclude", "uniform", "random", "trained")
    wide.setup(Setting(0, 1, 10, 1000, 9, 3, Clients.of(torch.ones(9, 10)), Model({})))
    values = wide.broadcast(1)["prototypes"]
    assert values.shape == (10, 1000)
    for quantile in (0.1, 0.5, 0.9):
        assert (values < quantile).float().mean().item() == pytest.approx(quantile, abs=0.02)
    one, same, other = (make(first="random", seed=seed).broadcast(1) for seed in (0, 0, 1))
    assert equal(one, same)
    assert not torch.equal(one["prototypes"], other["prototypes"])


def test_random_first_prototypes_are_replaced_class_by_class() -> None:
    first = make(first="random").broadcast(1)["prototypes"]
    second = served(COHORT, first="random").broadcast(2)["prototypes"]
    reported = served(COHORT).broadcast(2)["prototypes"]
    assert torch.equal(second[:3], reported[:3])
    assert torch.equal(second[3], first[3])  # no client holds class 3


# In a federation.


def test_the_first_round_is_fedavg_and_later_ones_are_not() -> None:
    fedavg, aligned = federate(*SMALL), federate(*SMALL, "loss=prototype_align")
    for round in (1, 2):
        fedavg.run_round(round)
        aligned.run_round(round)
        assert equal(fedavg.server.weights, aligned.server.weights) == (round == 1)


def test_the_bytes_sent_are_counted() -> None:
    plain, aligned = federate(*SMALL), federate(*SMALL, "loss=prototype_align")
    width = plain.server.weights["head.linear.weight"].shape[1]
    for round, download in ((1, 0), (2, 4 * 10 * (width * 4 + 1))):
        one, other = plain.run_round(round).metrics, aligned.run_round(round).metrics
        assert other["cost/download_bytes"] - one["cost/download_bytes"] == download
        upload = other["cost/upload_bytes"] - one["cost/upload_bytes"]
        assert upload == 4 * (10 * width * 4 + 10 * 8)


def test_the_reports_are_the_class_means_of_the_trained_model() -> None:
    federation = federate(*SMALL, "loss=prototype_align")
    (sent,) = federation.engine.train([2], federation.server.broadcast(1))
    module: Any = federation.module.eval()
    ((inputs, labels),) = module.data.batches(1000)
    with torch.no_grad():
        z = module.backbone(inputs)
    report = sent.extras["loss"]
    assert torch.equal(report["counts"], module.data.class_counts)
    for label in report["counts"].nonzero().flatten().tolist():
        torch.testing.assert_close(report["prototypes"][label], z[labels == label].mean(dim=0))


LAST_EPOCH = ["loss=prototype_align", "loss.features=last_epoch", "loss.first=random"]


def seen_in_the_last_epoch(federation: Any, client: int, lam: float) -> dict[int, Tensor]:
    """Class -> mean feature in the second of two epochs of SGD, by plain PyTorch."""
    message = federation.server.broadcast(1)
    module = federation.engine.resources.load_global(message)
    backbone, head = deepcopy(module.backbone).train(), deepcopy(module.head)
    targets = message.extras["loss"]["prototypes"]
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD([p.requires_grad_() for p in parameters], 0.05, 0.9)
    batches = federation.data.clients[client].local_batches(1, 8)
    for _ in range(2):
        seen: dict[int, list[Tensor]] = {}
        for x, y in batches:
            z = backbone(x)
            for label, feature in zip(y.tolist(), z.detach(), strict=True):
                seen.setdefault(label, []).append(feature)
            loss = F.cross_entropy(head(z), y) + lam * F.mse_loss(z, targets[y])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {label: torch.stack(each).mean(dim=0) for label, each in seen.items()}


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_the_reports_may_be_the_class_means_of_the_last_epochs_steps(engine: str) -> None:
    sgd = ["optimizer.lr=0.05", "optimizer.momentum=0.9", "optimizer.weight_decay=0"]
    options = [*LAST_EPOCH, "loss.lam=0.5", "local.epochs=2", "local.batch_size=8", *sgd]
    federation = federate(*SMALL, *options, f"engine={engine}")
    cohort = [0, 1, 2]
    expected = [seen_in_the_last_epoch(federation, client, 0.5) for client in cohort]
    message = federation.server.broadcast(1)
    updates = sorted(federation.engine.train(cohort, message), key=lambda each: each.client)
    sizes = {update.num_samples for update in updates}
    assert len(sizes) > 1  # clients come to their last epoch at different steps
    for update, means in zip(updates, expected, strict=True):
        report = update.extras["loss"]
        counts = federation.data.clients[update.client].class_counts
        assert report["counts"].dtype == counts.dtype
        assert torch.equal(report["counts"], counts)
        assert set(means) == set(counts.nonzero().flatten().tolist())
        for label, mean in means.items():
            torch.testing.assert_close(report["prototypes"][label], mean, atol=1e-5, rtol=1e-5)


def test_the_last_epochs_features_are_of_the_phase_that_is_last() -> None:
    """FedRep's head phase, of two epochs, is not counted."""
    federation = federate(*SMALL, *LAST_EPOCH, "algorithm=fedrep", "personalization.head_epochs=2")
    (update,) = federation.engine.train([3], federation.server.broadcast(1))
    counts = federation.data.clients[3].class_counts
    assert torch.equal(update.extras["loss"]["counts"], counts)


def test_the_options_of_fednhs_study_run_alike_in_both_engines() -> None:
    options = ["loss.weighting=uniform", "loss.first=random", "loss.lam=0.1"]
    options += ["loss.features=last_epoch"]
    small = [*SMALL, "algorithm=fedproto", *options, "measure.personal.every=1"]
    serial, vectorized = federate(*small), federate(*small, "engine=vectorized")
    plain = federate(*SMALL, "algorithm=fedproto", "measure.personal.every=1")
    for round in (1, 2):
        one, other = serial.run_round(round).metrics, vectorized.run_round(round).metrics
        for name in ("train/loss", "personal/accuracy_uniform", "personal/accuracy_head_uniform"):
            assert other[name] == pytest.approx(one[name], rel=1e-3)
        assert one["train/loss"] != pytest.approx(plain.run_round(round).metrics["train/loss"])


def test_a_large_weight_keeps_features_at_their_prototypes() -> None:
    """After the second round, own features lie nearer to what was sent, the larger lam is."""
    distances = []
    for lam in (0, 10):
        federation = federate(*SMALL, "local.epochs=5", "loss=prototype_align", f"loss.lam={lam}")
        federation.run_round(1)
        message = federation.server.broadcast(2)
        list(federation.engine.train([0], message))
        z, y = federation.module.features()
        sent = message.extras["loss"]["prototypes"]
        distances.append(F.mse_loss(z, sent[y]).item())
    assert distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize(
    "override", ["loss.lam=-1", "loss.weighting=count", "loss.first=zeros", "loss.features=all"]
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=rf"^{override}: should be"):
        federate(*SMALL, "loss=prototype_align", override)
