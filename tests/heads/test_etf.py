import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate, take_step
from torch import Tensor

from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.heads.adaptation import Form, adaptation, population_gamma
from fedexp.heads.etf import ETF, simplex_etf
from fedexp.measures.scoring.scoring import Scoring

SMALL = ["clients.count=6", "clients.per_round=6", "local.epochs=2"]
COUNTS = torch.tensor([6, 2, 0, 0])
NOTHING = PartMessage(1, {})


def etf(feature_dim: int = 5, num_classes: int = 4, **options: Any) -> ETF:
    defaults: dict[str, Any] = {
        "energy": 100.0,
        "feature_norm": "l2",
        "adapt": True,
        "phi": "linear",
        "phi_normalization": "client",
        "missing": "exclude",
    }
    return ETF(feature_dim, num_classes, **(defaults | options))


def adapted(counts: Tensor = COUNTS, population: Tensor | None = None, **options: Any) -> ETF:
    """A head at the start of local training of a client with these class counts.

    ``population`` has those of all clients; by default there is only this one.
    """
    everyone = counts.unsqueeze(0) if population is None else population
    head = etf(num_classes=len(counts), **({"feature_dim": len(counts) + 1} | options))
    sizes = len(counts), len(counts) + 1, len(everyone)
    head.setup(Setting(0, 1, *sizes, 1, Clients.of(everyone), Model({})))
    client: Any = SimpleNamespace(data=SimpleNamespace(class_counts=counts))
    head.begin(client, NOTHING, {})
    return head


@pytest.mark.parametrize(
    ("num_classes", "dim"), [(2, 1), (2, 7), (3, 2), (10, 9), (10, 10), (10, 84), (100, 99)]
)
def test_unit_rows_with_equal_angles(num_classes: int, dim: int) -> None:
    rows = simplex_etf(num_classes, dim, torch_generator(0, "test")).double()
    assert rows.shape == (num_classes, dim)
    gram = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64)
    gram.fill_diagonal_(1)
    torch.testing.assert_close(rows @ rows.T, gram, atol=2e-6, rtol=0)
    torch.testing.assert_close(rows.sum(dim=0), torch.zeros_like(rows[0]), atol=2e-6, rtol=0)


def test_the_rotation_depends_on_the_generator_alone() -> None:
    one, same, other = (simplex_etf(5, 8, torch_generator(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(("num_classes", "dim"), [(10, 8), (3, 1)])
def test_too_few_dimensions(num_classes: int, dim: int) -> None:
    with pytest.raises(
        InputError, match=rf"^head=etf: .*feature_dim={dim} .*at least {num_classes - 1}$"
    ):
        simplex_etf(num_classes, dim)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("linear", [3, 1, 0, 0]),
        ("sqrt", [4 * 0.8660254 / 1.3660254, 4 * 0.5 / 1.3660254, 0, 0]),
        ("exp", [4 * 2.1170000 / 3.4010254, 4 * 1.2840254 / 3.4010254, 0, 0]),
    ],
)
def test_adaptation_by_hand(form: Any, expected: list[float]) -> None:
    # shares 3/4 and 1/4: their roots are .866 and .5, their exponentials 2.117 and 1.284
    assert adaptation(COUNTS, form).tolist() == pytest.approx(expected, abs=1e-5)
    assert adaptation(torch.tensor([7, 7, 7]), form).tolist() == pytest.approx([1, 1, 1])


def test_adaptation_is_linear_by_default_and_finite_for_a_thousand_classes() -> None:
    assert adaptation(torch.tensor([5, 0])).tolist() == [2, 0]
    one_of_many = F.one_hot(torch.tensor(3), 1000) * 50
    assert adaptation(one_of_many, "exp")[3].item() == pytest.approx(1000)


# Phi normalised over the population.

FORMS: list[Form] = ["linear", "sqrt", "exp"]
# Ten clients of two classes each; every class is held by two clients.
P10C2 = torch.stack([F.one_hot(torch.tensor([k, (k + 1) % 10]), 10).sum(dim=0) for k in range(10)])
# Uneven: client 2 holds all classes but the last, client 3 has no data, no client has class 4.
UNEVEN = torch.tensor([[30, 0, 5, 0, 0], [0, 7, 0, 1, 0], [9, 1, 2, 400, 0], [0, 0, 0, 0, 0]])


def phi_over_population(counts: Tensor, form: Form) -> list[list[float]]:
    """Phi_k(c) = n Q(q_kc) / sum_k n_k Q(q_kc) in loops; 0 where no client has the class's Q."""
    q = {"linear": lambda share: share, "sqrt": math.sqrt, "exp": math.exp}[form]
    sizes = [sum(row) for row in counts.tolist()]
    shares = [
        [count / size if size else 0.0 for count in row]
        for row, size in zip(counts.tolist(), sizes, strict=True)
    ]
    phi = []
    for row in shares:
        totals = [
            sum(size * q(other[c]) for size, other in zip(sizes, shares, strict=True))
            for c in range(counts.shape[1])
        ]
        phi.append([sum(sizes) * q(s) / t if t else 0.0 for s, t in zip(row, totals, strict=True)])
    return phi


@pytest.mark.parametrize(
    ("form", "held", "missing"), [("linear", 5, 0), ("sqrt", 5, 0), ("exp", 1.459, 0.885)]
)
@pytest.mark.parametrize("samples", [1, 2500])
def test_phi_over_the_population_of_ten_clients_with_two_classes(
    form: Form, held: float, missing: float, samples: int
) -> None:
    population = samples * P10C2
    for counts in population:
        head = adapted(counts, population, phi=form, phi_normalization="population")
        assert head.phi[counts > 0].tolist() == pytest.approx([held] * 2, abs=5e-4)
        assert head.phi[counts == 0].tolist() == pytest.approx([missing] * 8, abs=5e-4)


@pytest.mark.parametrize("form", FORMS)
def test_phi_over_the_population_agrees_with_loops(form: Form) -> None:
    for counts, expected in zip(UNEVEN, phi_over_population(UNEVEN, form), strict=True):
        head = adapted(counts, UNEVEN, phi=form, phi_normalization="population")
        assert head.phi.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_clients_phi_average_to_one(form: Form) -> None:
    """sum_k p_k Phi_k(c) = 1 for every class that a client holds, whatever the sizes."""
    sizes = UNEVEN.sum(dim=1)
    average = torch.zeros(5)
    for counts, size in zip(UNEVEN, sizes, strict=True):
        head = adapted(counts, UNEVEN, phi=form, phi_normalization="population")
        average += size / sizes.sum() * head.phi
    torch.testing.assert_close(average[:4], torch.ones(4))
    assert average[4].item() == pytest.approx(1 if form == "exp" else 0)


@pytest.mark.parametrize("form", FORMS)
def test_gamma_is_finite_without_data(form: Form) -> None:
    gamma = population_gamma(UNEVEN, form)
    assert gamma.isfinite().all()
    assert gamma[4].item() == (1 if form == "exp" else 0)
    assert population_gamma(torch.zeros(3, 4, dtype=torch.int64), form).tolist() == [0] * 4
    assert adaptation(torch.zeros(4, dtype=torch.int64), form).tolist() == [0] * 4


def test_linear_gamma_is_exact_over_the_population_and_c_for_a_client() -> None:
    """n / n_c; the paper and the released code fix C, which is the same on balanced data."""
    assert population_gamma(UNEVEN).tolist() == pytest.approx([455 / 39, 455 / 8, 65, 455 / 401, 0])
    for counts in UNEVEN[:3]:
        shares = counts / counts.sum()
        torch.testing.assert_close(adapted(counts, UNEVEN).phi, 5 * shares)
        exact = adapted(counts, UNEVEN, phi_normalization="population").phi
        assert not torch.allclose(exact, 5 * shares, rtol=0.05)


@pytest.mark.parametrize("missing", ["exclude", "zero_logit"])
def test_under_exp_missing_classes_keep_their_phi_unless_excluded(missing: Any) -> None:
    options: dict[str, Any] = {"phi": "exp", "phi_normalization": "population", "missing": missing}
    head = adapted(P10C2[0], P10C2, **options)
    z = torch.randn(6, 11)
    logits, plain = head(z), F.normalize(z) @ head.weight.T
    gamma = 10 / (8 + 2 * math.exp(0.5))
    torch.testing.assert_close(logits[:, :2], gamma * math.exp(0.5) * plain[:, :2])
    if missing == "exclude":
        assert logits[:, 2:].isneginf().all()
    else:
        torch.testing.assert_close(logits[:, 2:], gamma * plain[:, 2:])


def test_phi_over_the_population_uses_the_counts_of_all_clients() -> None:
    federation = federate(
        "algorithm=fedgela", *SMALL, "head.phi=sqrt", "head.phi_normalization=population"
    )
    counts = federation.data.class_counts
    expected = phi_over_population(counts, "sqrt")
    head: Any = federation.module.head
    for client in range(6):
        list(federation.engine.train([client], federation.server.broadcast(1)))
        assert head.phi.tolist() == pytest.approx(expected[client], rel=1e-5)


# The head.


def test_global_logits_by_hand() -> None:
    head = etf()
    z = torch.randn(6, 5)
    logits = head(z)
    for i in range(6):
        unit = z[i] / z[i].square().sum().sqrt()
        for c in range(4):
            assert logits[i, c].item() == pytest.approx((head.weight[c] @ unit).item(), abs=1e-5)
    torch.testing.assert_close(head.weight.square().sum(dim=1), torch.full((4,), 100.0))


def test_batchnorm_features_have_unit_length_on_average() -> None:
    head = etf(feature_norm="batchnorm").train()
    z = torch.randn(50, 5) * 7 + 3
    standard = (z - z.mean(dim=0)) / z.std(dim=0, correction=0)
    expected = standard @ head.weight.T / math.sqrt(5)
    torch.testing.assert_close(head(z), expected, atol=1e-3, rtol=1e-3)
    assert (standard / math.sqrt(5)).square().sum(dim=1).mean().item() == pytest.approx(1)
    assert list(head.parameters()) == []


def test_affine_batchnorm_by_hand() -> None:
    head = etf(feature_norm="batchnorm_affine").train()
    parameters = dict(head.named_parameters())
    assert set(parameters) == {"batchnorm.weight", "batchnorm.bias"}
    z = torch.randn(50, 5) * 7 + 3
    standard = (z - z.mean(dim=0)) / z.std(dim=0, correction=0)
    torch.testing.assert_close(head(z), standard @ head.weight.T, atol=2e-3, rtol=1e-3)
    assert standard.square().sum(dim=1).mean().item() == pytest.approx(5)  # d, not 1

    slope, offset = torch.arange(1.0, 6.0), torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    with torch.no_grad():
        parameters["batchnorm.weight"].copy_(slope)
        parameters["batchnorm.bias"].copy_(offset)
    expected = (standard * slope + offset) @ head.weight.T
    torch.testing.assert_close(head(z), expected, atol=5e-3, rtol=1e-3)


def test_affine_batchnorm_is_trained_and_averaged_by_samples() -> None:
    federation = federate("algorithm=fedgela", *SMALL, "head.feature_norm=batchnorm_affine")
    message = federation.server.broadcast(1)
    names = ["weight", "bias", "running_mean", "running_var"]
    assert {f"head.batchnorm.{name}" for name in names} <= message.weights.keys()
    assert torch.equal(message.weights["head.batchnorm.weight"], torch.ones(64))
    updates = list(federation.engine.train([0, 1, 2], message))
    take_step(federation.server, updates)
    total = sum(update.num_samples for update in updates)
    for name in names:
        trained = [update.weights[f"head.batchnorm.{name}"] for update in updates]
        assert not torch.equal(trained[0], message.weights[f"head.batchnorm.{name}"])
        assert not torch.equal(trained[0], trained[1])
        mean = sum((u.num_samples / total * w for u, w in zip(updates, trained, strict=True)))
        torch.testing.assert_close(federation.server.weights[f"head.batchnorm.{name}"], mean)


@pytest.mark.parametrize("feature_norm", ["batchnorm", "batchnorm_affine"])
def test_batchnorm_normalises_a_single_sample_by_the_running_statistics(feature_norm: str) -> None:
    head = etf(feature_norm=feature_norm).train()
    for _ in range(100):
        head(torch.randn(50, 5) * 7 + 3)
    z = torch.randn(1, 5) * 7 + 3
    torch.testing.assert_close(head(z), head.eval()(z))
    assert head(z).abs().max() > 0.1


def test_missing_classes_are_left_out_of_the_softmax() -> None:
    head = adapted()
    z = torch.randn(6, 5, requires_grad=True)
    targets = torch.tensor([0, 1, 0, 0, 1, 0])
    logits = head(z)
    assert torch.equal(logits[:, 2:], torch.full((6, 2), -torch.inf))
    loss = F.cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(loss, z)

    held = torch.stack((3 * head.weight[0], 1 * head.weight[1]))
    reference = F.cross_entropy((z / z.norm(dim=1, keepdim=True)) @ held.T, targets)
    (expected,) = torch.autograd.grad(reference, z)
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(gradient, expected)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("feature_norm", ["l2", "batchnorm", "batchnorm_affine"])
@pytest.mark.parametrize("training", [True, False])
def test_missing_classes_have_logit_exactly_zero(feature_norm: str, training: bool) -> None:
    head = adapted(missing="zero_logit", feature_norm=feature_norm, energy=1e10).train(training)
    logits = head(1000 * torch.randn(6, 5))
    assert (logits[:, 2:] == 0).all()
    assert logits[:, :2].abs().min() > 0


def test_missing_classes_with_logit_zero_stay_in_the_softmax() -> None:
    head = adapted(missing="zero_logit", energy=4.0)
    z, targets = torch.randn(6, 5), torch.tensor([0, 1, 0, 0, 1, 0])
    held = F.normalize(z) @ torch.stack((3 * head.weight[0], head.weight[1])).T
    losses = []
    for (first, second), target in zip(held.tolist(), targets.tolist(), strict=True):
        total = math.exp(first) + math.exp(second) + 2  # e^0 for each missing class
        losses.append(math.log(total) - (first, second)[target])
    found = F.cross_entropy(head(z), targets, reduction="none")
    assert found.tolist() == pytest.approx(losses, rel=1e-5)


def test_a_personal_model_predicts_a_missing_class_where_the_held_logits_are_negative() -> None:
    head = adapted(missing="zero_logit").eval()
    away, towards = -(head.weight[0] + head.weight[1]), head.weight[0]
    assert head(away.unsqueeze(0)).argmax().item() == 2  # the first of the missing classes
    assert head(towards.unsqueeze(0)).argmax().item() == 0


@pytest.mark.parametrize("form", ["sqrt", "exp"])
def test_the_other_forms_scale_the_logits(form: Any) -> None:
    head, plain = adapted(phi=form), etf()
    plain.weight.copy_(head.weight)
    z = torch.randn(6, 5)
    expected = adaptation(COUNTS, form)[:2] * plain(z)[:, :2]
    torch.testing.assert_close(head(z)[:, :2], expected)


def test_receiving_the_global_model_undoes_the_adaptation() -> None:
    head, z = adapted(), torch.randn(6, 5)
    adapted_logits = head(z)
    head.receive(NOTHING)
    torch.testing.assert_close(head(z), F.normalize(z) @ head.weight.T)
    assert not torch.equal(head(z), adapted_logits)


def test_without_adaptation_a_client_keeps_the_global_classifier() -> None:
    head, z = adapted(adapt=False), torch.randn(6, 5)
    torch.testing.assert_close(head(z), F.normalize(z) @ head.weight.T)


def test_the_head_is_not_sent_but_belongs_to_the_model() -> None:
    federation = federate("algorithm=fedgela", *SMALL)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    for sent in (message, update):
        assert not any(name.startswith("head.") for name in sent.weights)
        assert "head" not in sent.extras
    model = federation.global_model(1)
    assert {"head.weight", "head.phi", "head.included"} <= model.weights.keys()
    vectors = model.head.prototypes()
    assert vectors is not None
    assert torch.equal(vectors, model.weights["head.weight"])


def test_the_classifier_depends_on_the_seed() -> None:
    one, same, other = (
        federate("algorithm=fedgela", *SMALL, f"seed={seed}").global_model(1).weights["head.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_personal_models_keep_their_adaptation_and_the_global_one_has_none() -> None:
    excluding = ["head.missing=exclude", "partition.beta=0.1"]
    federation = federate("algorithm=fedgela", *SMALL, *excluding)
    federation.run_round(1)
    head: Any = federation.module.head
    labels = federation.data.test.labels
    message = federation.server.broadcast(1)
    visited = []
    for client, predictions in Scoring(federation.engine).score_personal(message):
        counts = federation.data.class_counts[client]
        torch.testing.assert_close(head.phi, adaptation(counts))
        assert torch.equal(head.included, counts > 0)
        assert not predictions.correct[(counts == 0)[labels]].any()
        visited.append(client)
    assert visited == list(range(6))
    assert not head.included.all()
    assert math.isfinite(Scoring(federation.engine).score_global(message).loss)
    assert torch.equal(head.phi, torch.ones(10))
    assert head.included.all()


def test_the_vectorized_engine_refuses_batchnorm() -> None:
    overrides = ["algorithm=fedgela", "head.feature_norm=batchnorm_affine", "engine=vectorized"]
    with pytest.raises(InputError, match=r"^engine=vectorized: head\.batchnorm is BatchNorm"):
        federate(*overrides, *SMALL)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fedgela"],
        ["algorithm=fedge"],
        ["algorithm=fedgela", "head.missing=zero_logit", "head.feature_norm=batchnorm"],
        [
            *["algorithm=fedgela", "head.missing=zero_logit", "head.energy=1e10"],
            "head.feature_norm=batchnorm_affine",
        ],
        [
            *["algorithm=fedgela", "head.missing=zero_logit", "head.energy=100"],
            *["head.phi=exp", "head.phi_normalization=population"],
        ],
    ],
    ids=["fedgela", "fedge", "batchnorm", "released", "exp over the population"],
)
def test_it_learns(overrides: list[str]) -> None:
    federation = federate(*overrides, *SMALL, "measure.personal.every=2")
    metrics = [federation.run_round(round).metrics for round in (1, 2)][-1]
    assert math.isfinite(metrics["train/loss"])
    assert math.isfinite(metrics["global/loss"])
    assert metrics["global/accuracy"] > 0.3  # chance is 0.1
    assert metrics["personal/accuracy_test_split"] > 0.5
