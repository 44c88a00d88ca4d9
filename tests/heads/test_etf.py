import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from federations import federate
from torch import Tensor

from fedexp.core.messages import Message
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.heads.etf import ETF, adaptation, simplex_etf

SMALL = ["clients.count=6", "clients.per_round=6", "local.epochs=2"]
COUNTS = torch.tensor([6, 2, 0, 0])
NOTHING = Message(1, {})


def etf(feature_dim: int = 5, num_classes: int = 4, **options: Any) -> ETF:
    defaults: dict[str, Any] = {
        "energy": 100.0,
        "feature_norm": "l2",
        "adapt": True,
        "phi": "linear",
        "missing": "exclude",
    }
    return ETF(feature_dim, num_classes, **(defaults | options))


def adapted(counts: Tensor = COUNTS, **options: Any) -> ETF:
    """A head at the start of local training of a client with these class counts."""
    head = etf(**options)
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


def test_the_generator_names_the_rotation() -> None:
    one, same, other = (simplex_etf(5, 8, torch_generator(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(("num_classes", "dim"), [(10, 8), (3, 1)])
def test_no_room(num_classes: int, dim: int) -> None:
    with pytest.raises(InputError, match=rf"^head=etf: .* classes - 1 = {num_classes - 1}, has"):
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


def test_adaptation_is_linear_by_default_and_does_not_overflow() -> None:
    assert adaptation(torch.tensor([5, 0])).tolist() == [2, 0]
    one_of_many = F.one_hot(torch.tensor(3), 1000) * 50
    assert adaptation(one_of_many, "exp")[3].item() == pytest.approx(1000)


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


def test_batchnorm_measures_a_lone_sample_by_the_running_statistics() -> None:
    head = etf(feature_norm="batchnorm").train()
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


def test_missing_classes_with_logit_zero() -> None:
    head = adapted(missing="zero_logit")
    z = torch.randn(6, 5)
    logits = head(z)
    held = F.normalize(z) @ torch.stack((3 * head.weight[0], head.weight[1])).T
    torch.testing.assert_close(logits, torch.cat((held, torch.zeros(6, 2)), dim=1))


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


def test_nothing_of_the_head_travels_but_all_of_it_belongs_to_the_model() -> None:
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


def test_the_seed_names_the_classifier() -> None:
    one, same, other = (
        federate("algorithm=fedgela", *SMALL, f"seed={seed}").global_model(1).weights["head.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_personal_models_keep_their_adaptation_and_the_global_one_has_none() -> None:
    federation = federate("algorithm=fedgela", *SMALL, "partition.beta=0.1")
    federation.run_round(1)
    resources = federation.engine.resources
    head: Any = resources.module.head
    labels = resources.data.test.labels
    message = federation.server.broadcast(1)
    visited = []
    for client, predictions in federation.engine.evaluate_personal(message):
        counts = resources.data.class_counts[client]
        torch.testing.assert_close(head.phi, adaptation(counts))
        assert torch.equal(head.included, counts > 0)
        assert not predictions.correct[(counts == 0)[labels]].any()
        visited.append(client)
    assert visited == list(range(6))
    assert not head.included.all()
    assert math.isfinite(federation.engine.evaluate(message).loss)
    assert torch.equal(head.phi, torch.ones(10))
    assert head.included.all()


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fedgela"],
        ["algorithm=fedge"],
        ["algorithm=fedgela", "head.missing=zero_logit", "head.feature_norm=batchnorm"],
    ],
    ids=["fedgela", "fedge", "released"],
)
def test_it_learns(overrides: list[str]) -> None:
    federation = federate(*overrides, *SMALL, "evaluation.personal_every=2")
    metrics = [federation.run_round(round).metrics for round in (1, 2)][-1]
    assert math.isfinite(metrics["train/loss"])
    assert math.isfinite(metrics["global/loss"])
    assert metrics["global/accuracy"] > 0.3  # chance is 0.1
    assert metrics["personal/accuracy_test_split"] > 0.5
