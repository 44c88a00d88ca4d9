import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.views import after_round

from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Client
from fedexp.core.messages import Message, PartMessage
from fedexp.core.part import Memory
from fedexp.data.samples import Samples
from fedexp.measures.membership import (
    Membership,
    attack_metrics,
    choose,
    confidences,
    halves,
    likelihood_ratios,
)
from fedexp.runtime.federation import Federation

# A hundred samples, many epochs: what the model gets right in the test split it has not memorised.
OVERFITTED = [
    "rounds=2",
    "clients.count=2",
    "clients.per_round=2",
    "partition=iid",
    "data.subset=100",
    "local.epochs=40",
    "measure.personal=null",
]
LIRA = ["+measure=membership", "measure.membership.attack=lira", "measure.membership.epochs=20"]


def test_confidence_is_the_logit_of_the_label_and_does_not_saturate() -> None:
    logits = torch.tensor([[1.0, 2.0, -0.5], [0.0, 0.0, 0.0], [100.0, 0.0, 0.0], [0.0, 900.0, 0.0]])
    labels = torch.tensor([0, 2, 0, 0])
    p = math.exp(1) / (math.exp(1) + math.exp(2) + math.exp(-0.5))
    expected = [math.log(p / (1 - p)), math.log(1 / 2), 100 - math.log(2), -900]
    assert confidences(logits, labels).tolist() == pytest.approx(expected)


def test_area_under_the_curve_by_counting_pairs() -> None:
    scores = np.array([0.9, 0.8, 0.3, 0.7, 0.2, 0.3])
    is_member = np.array([True, True, True, False, False, False])
    # Of nine pairs .9 and .8 win three each; .3 wins one and ties one. Above .7 are two of three.
    assert attack_metrics("loss", scores, is_member) == pytest.approx(
        {
            "membership/loss_auc": 7.5 / 9,
            "membership/loss_tpr_at_1fpr": 2 / 3,
            "membership/loss_accuracy": (2 / 3 + 1) / 2,  # from 0.8 on: TPR 2/3, FPR 0
        }
    )


def test_accuracy_is_that_of_the_best_threshold() -> None:
    draw = np.random.default_rng(0)
    scores = np.concatenate([draw.normal(0.5, 1, 40), draw.normal(0, 1, 40)]).round(1)
    is_member = np.arange(80) < 40
    # Members and others are equally many, so (TPR + 1 - FPR) / 2 is the share of right answers.
    right = [((scores >= threshold) == is_member).mean() for threshold in (*scores, np.inf)]
    found = attack_metrics("loss", scores, is_member)
    assert found["membership/loss_accuracy"] == pytest.approx(max(right))
    worst = attack_metrics("loss", np.array([0.0, 1.0]), np.array([True, False]))
    assert worst["membership/loss_accuracy"] == 0.5  # suspecting nobody


def test_guessing_has_an_accuracy_above_one_half() -> None:
    """The threshold is chosen on the attacked samples; 60 draws with 300 members have 0.523."""
    draw, is_member = np.random.default_rng(0), np.arange(600) < 300
    found = [attack_metrics("loss", draw.normal(size=600), is_member) for _ in range(60)]
    assert 0.51 < np.mean([each["membership/loss_accuracy"] for each in found]) < 0.54
    assert np.mean([each["membership/loss_auc"] for each in found]) == pytest.approx(0.5, abs=0.02)


def test_one_percent_of_the_others_may_be_suspected() -> None:
    others = np.arange(200.0)  # two of them are 1 %: the threshold is 198
    members = np.array([500.0, 198.5, 197.5, 196.5, -1.0])
    is_member = np.arange(205) < 5
    found = attack_metrics("lira", np.concatenate([members, others]), is_member)
    assert found["membership/lira_tpr_at_1fpr"] == pytest.approx(3 / 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_model_has_no_area(bad: float) -> None:
    found = attack_metrics("loss", np.array([1.0, bad]), np.array([True, False]))
    assert len(found) == 3
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("shadows", [4, 6, 64])
def test_likelihood_ratios_by_a_loop(shadows: int) -> None:
    draw = np.random.default_rng(shadows)
    n = 5
    inside = halves(n, shadows, seed=3)
    values = draw.normal(size=(shadows, n)) * [1, 2, 3, 4, 5] + 2 * inside
    target = draw.normal(size=n)

    def gaussians(kind: bool) -> list[tuple[float, float]]:
        columns = [[values[s, i] for s in range(shadows) if inside[s, i] == kind] for i in range(n)]
        means = [sum(column) / len(column) for column in columns]
        squares = [
            sum((v - m) ** 2 for v in column) for column, m in zip(columns, means, strict=True)
        ]
        if shadows >= 64:
            own = [s / (len(c) - 1) for s, c in zip(squares, columns, strict=True)]
        else:
            own = [sum(squares) / sum(len(c) - 1 for c in columns)] * n
        return list(zip(means, own, strict=True))

    def log_density(x: float, mean: float, variance: float) -> float:
        return -((x - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2

    expected = [
        log_density(x, *trained) - log_density(x, *untrained)
        for x, trained, untrained in zip(target, gaussians(True), gaussians(False), strict=True)
    ]
    np.testing.assert_allclose(likelihood_ratios(target, values, inside), expected, rtol=1e-10)


def test_bit_identical_shadows_still_rank_members_first() -> None:
    inside = halves(2, 4, seed=0)
    scores = likelihood_ratios(np.array([1.0, 0.0]), np.where(inside, 1.0, 0.0), inside)
    assert scores[0] > 0 > scores[1]
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("size", [10, 11])
def test_each_sample_is_in_half_of_the_shadows(size: int) -> None:
    inside = halves(size, 8, seed=1)
    assert (inside.sum(axis=0) == 4).all()
    assert set(inside.sum(axis=1)) == {size // 2, size - size // 2}
    assert len({tuple(row) for row in inside}) == 8
    assert (halves(size, 8, seed=1) == inside).all()
    assert (halves(size, 8, seed=2) != inside).any()


@pytest.mark.parametrize(("samples", "expected"), [(50, 50), (10_000, 98), (33, 33)])
def test_members_and_others_match_in_size_and_classes(samples: int, expected: int) -> None:
    """A hundred samples less those of the client that is gone."""
    federation = federate(*OVERFITTED, "clients.count=50", "data.subset=100")
    data = federation.data
    data.clients.pop()  # holds two
    members, others = choose(data, samples)
    held = {int(i) for client in data.clients for i in client.train_index}
    assert len(members) == len(others) == expected
    assert set(members) <= held
    assert len(set(members)) == len(set(others)) == expected
    classes = [
        np.bincount(split.labels[index].numpy(), minlength=10)
        for split, index in ((data.train, members), (data.test, others))
    ]
    assert (classes[0] == classes[1]).all()
    again = choose(data, samples)
    assert (again[0] == members).all()
    assert (again[1] == others).all()


def attacked(federation: Federation, round: int) -> Mapping[str, float]:
    return federation.measures["membership"](after_round(federation, round)).metrics


def test_memorised_samples_are_found_and_an_untrained_model_knows_nothing() -> None:
    federation = federate(*OVERFITTED, *LIRA, "seed=2")
    untrained = attacked(federation, 0)
    assert untrained["membership/loss_auc"] == pytest.approx(0.5, abs=0.1)
    assert untrained["membership/lira_auc"] == pytest.approx(0.5, abs=0.1)
    first, last = (federation.run_round(round).metrics for round in (1, 2))
    assert not any(name.startswith("membership/") for name in first)
    assert last["membership/loss_auc"] > 0.57
    assert last["membership/lira_auc"] > last["membership/loss_auc"]
    assert set(untrained) == {name for name in last if name.startswith("membership/")}
    # Keyed by the seed alone, and the federation has not noticed.
    assert attacked(federation, 2) == {name: last[name] for name in untrained}


def test_the_attack_does_not_change_the_model_or_its_objective() -> None:
    federation = federate(
        *OVERFITTED,
        "local.epochs=1",
        "algorithm=fedprox",
        "+measure=membership",
        "measure.membership.attack=lira",
        "measure.membership.epochs=1",
    )
    plain = federate(*OVERFITTED, "local.epochs=1", "algorithm=fedprox")
    regularizer = federation.module.regularizer
    attack = federation.measures["membership"]
    attack.due = lambda round, rounds: round == 1  # type: ignore[method-assign]
    metrics = [federation.run_round(round).metrics for round in (1, 2)]
    assert ["membership/lira_auc" in each for each in metrics] == [True, False]
    for round in (1, 2):
        plain.run_round(round)
    assert federation.module.regularizer is regularizer
    for name, weight in plain.server.weights.items():
        assert torch.equal(weight, federation.server.weights[name])


@pytest.mark.parametrize("algorithm", ["fedprox", "fedacg"])
def test_shadows_start_from_the_initial_weights_without_a_regularizer(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(*OVERFITTED, *LIRA, "local.epochs=1", f"algorithm={algorithm}")
    initial = {name: w.clone() for name, w in federation.server.weights.items()}
    federation.run_round(1)
    seen: list[tuple[Message, dict[str, object]]] = []

    def train(engine: object, cohort: list[int], message: Message) -> list[object]:
        resources = engine.resources  # type: ignore[attr-defined]
        penalty = resources.module.regularizer(resources.module.trained_parameters())
        held = resources.data.clients[cohort[0]].num_samples
        facts = {"penalty": penalty, "held": held, "epochs": resources.local.epochs}
        seen.append((message.to_client(cohort[0]), facts))
        return [type("Update", (), {"weights": message.weights})]

    monkeypatch.setattr("fedexp.measures.membership.Serial.train", train)
    attacked(federation, 1)
    assert len(seen) == 8
    for message, facts in seen:
        assert facts == {"penalty": 0.0, "held": 100, "epochs": 20}
        assert all(torch.equal(message.weights[name], w) for name, w in initial.items())


@pytest.mark.parametrize(
    ("method", "frozen"),
    [(["algorithm=fedbabu", "objective=global/accuracy"], True), (["algorithm=fedavg"], False)],
    ids=["fedbabu", "fedavg"],
)
def test_shadows_train_the_layers_that_clients_train(
    method: list[str], frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(*OVERFITTED, *LIRA, "local.epochs=1", *method)
    federation.run_round(1)
    initial = federation.engine.resources.initial
    target, *shadows = scored_weights(federation, monkeypatch)
    assert len(shadows) == 8
    for model in (target, *shadows):
        moved = {name for name, weight in model.items() if not torch.equal(weight, initial[name])}
        assert any(name.startswith("backbone.") for name in moved)
        assert any(name.startswith("head.") for name in moved) != frozen


def test_a_shadow_is_set_to_its_own_class_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedROD's hypernetwork makes the private head from the shares of the data that train it."""
    method = ["algorithm=fedrod", "personalization.private_head=hypernetwork"]
    options = [*LIRA, "local.epochs=1", "objective=global/accuracy"]
    federation = federate(*OVERFITTED, *options, *method)
    federation.run_round(1)
    part = federation.engine.resources.parts["personalization"]
    begin, begun = part.begin, list[int]()

    def recorded(client: Client, message: PartMessage, memory: Memory) -> None:
        begin(client, message, memory)
        begun.append(int(client.data.class_counts.sum()))

    monkeypatch.setattr(part, "begin", recorded)
    attacked(federation, 1)
    assert begun == [100] * 8  # eight shadows, each on half of the pool


def test_the_loss_attack_alone_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = federate(*OVERFITTED, "rounds=1", "+measure=membership")
    federation.run_round(1)
    monkeypatch.setattr(
        "fedexp.measures.membership.Serial.train", lambda *_: pytest.fail("trained")
    )
    assert set(attacked(federation, 1)) == {
        "membership/loss_auc",
        "membership/loss_tpr_at_1fpr",
        "membership/loss_accuracy",
    }


def test_the_accuracy_of_the_best_threshold_by_a_loop_over_losses() -> None:
    federation = federate(
        *["clients.count=4", "clients.per_round=4", "data.subset=150", "local.epochs=3"],
        *["rounds=1", "head=cosine", "model.feature_dim=6", "partition.beta=0.3"],
        *["+measure=membership", "measure.membership.samples=40"],
    )
    metrics = federation.run_round(1).metrics
    data, module = federation.data, federation.global_model(1)
    members, others = choose(data, 40)
    losses = []
    for samples, index in ((data.train, members), (data.test, others)):
        x, y = samples.gather(torch.from_numpy(index))
        with torch.no_grad():
            losses.append(F.cross_entropy(module(x), y, reduction="none").tolist())
    thresholds = [*losses[0], *losses[1], -1.0]
    right = [
        sum(loss <= t for loss in losses[0]) + sum(loss > t for loss in losses[1])
        for t in thresholds
    ]
    assert metrics["membership/loss_accuracy"] == pytest.approx(max(right) / 80, abs=1 / 80)


def test_off_runs_no_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "__call__", lambda *_: pytest.fail("attacked"))
    federation = federate(*OVERFITTED, "rounds=1", "local.epochs=1")
    metrics = federation.run_round(1).metrics
    assert not any(name.startswith("membership/") for name in metrics)


def scored_weights(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, torch.Tensor]]:
    """The weights of the attacked model and of each shadow model, after round 1."""
    scored: list[dict[str, torch.Tensor]] = []

    def confidences_of(module: ClientModule, pool: Samples, resources: object) -> np.ndarray:
        scored.append({name: weight.clone() for name, weight in module.weights.items()})
        return np.random.default_rng(len(scored)).normal(size=len(pool))

    with monkeypatch.context() as patch:
        patch.setattr("fedexp.measures.membership._confidences", confidences_of)
        attacked(federation, 1)
    assert len(scored) > 2
    return scored


def test_shadows_are_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*OVERFITTED, *LIRA, "local.epochs=1", "measure.membership.epochs=1"]
    compressed = federate(*words, "compression=topk", "compression.share=0.01")
    compressed.run_round(1)
    pair = (compressed, federate(*words))
    found, expected = (scored_weights(each, monkeypatch)[1:] for each in pair)
    for own, others in zip(found, expected, strict=True):
        assert all(torch.equal(own[name], weight) for name, weight in others.items())


def test_shadows_do_not_depend_on_the_client_that_trained_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*OVERFITTED, *LIRA, "local.epochs=1", "measure.membership.epochs=1", "gradient=lesam"]
    federation = federate(*words)
    federation.run_round(1)
    first = scored_weights(federation, monkeypatch)
    ascent = federation.module.gradient.ascent  # type: ignore[attr-defined]
    ascent.fill({name: torch.ones_like(ascent[name]) for name in ascent})
    for own, others in zip(scored_weights(federation, monkeypatch), first, strict=True):
        assert all(torch.equal(own[name], weight) for name, weight in others.items())
