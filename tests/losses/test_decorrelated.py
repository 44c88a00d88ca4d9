"""FedDecorr: the penalty by numpy's correlations, and its sum with other losses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.sockets import Loss
from fedexp.errors import InputError
from fedexp.losses.decorrelated import Form, correlation_penalty, decorrelated
from fedexp.losses.moon import Moon
from fedexp.testing import check_part

SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=2"]
FORMS: list[Form] = ["paper", "released"]
CROSS_ENTROPY = {"_target_": "fedexp.losses.cross_entropy.CrossEntropy"}


def draw(rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, dtype=torch.float64, generator=generator) * 3 + 1


def test_the_paper_s_form_is_the_mean_squared_correlation() -> None:
    z = draw(12, 5)
    expected = np.square(np.corrcoef(z.numpy().T)).mean()
    assert correlation_penalty(z, None, "paper").item() == pytest.approx(expected, rel=1e-7)


def test_the_released_form_by_numpy() -> None:
    z = draw(12, 5)
    products = 11 * np.corrcoef(z.numpy().T)
    others = np.square(products[~np.eye(5, dtype=bool)])
    expected = others.mean() / 12
    assert correlation_penalty(z, None, "released").item() == pytest.approx(expected, rel=1e-7)


def test_by_hand() -> None:
    # One feature is twice the other, the third is uncorrelated with both: K has 1 in five places.
    z = torch.tensor([[1.0, 2.0, 1.0], [1.0, 2.0, -1.0], [-1.0, -2.0, 1.0], [-1.0, -2.0, -1.0]])
    assert correlation_penalty(z, None, "paper").item() == pytest.approx(5 / 9)
    # The two other elements that are not 0 are 3: mean 2 * 9 / 6, over 4 samples.
    assert correlation_penalty(z, None, "released").item() == pytest.approx(3 / 4)


@pytest.mark.parametrize("form", FORMS)
def test_padding_does_not_count(form: Form) -> None:
    z = draw(7, 4)
    padded = torch.cat([z, z[:1].expand(3, 4)])
    real = torch.tensor([1.0] * 7 + [0.0] * 3)
    torch.testing.assert_close(
        correlation_penalty(padded, real, form), correlation_penalty(z, None, form)
    )


@pytest.mark.parametrize("form", FORMS)
def test_gradient_by_finite_differences(form: Form) -> None:
    z = draw(6, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: correlation_penalty(z, None, form), z)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 5])
def test_constant_features_have_no_gradient(form: Form, rows: int) -> None:
    z = torch.full((rows, 4), 0.3, requires_grad=True)
    penalty = correlation_penalty(z, None, form)
    (slopes,) = torch.autograd.grad(penalty, z)
    assert penalty.item() == pytest.approx(0, abs=1e-6)
    assert slopes.abs().max() == pytest.approx(0, abs=1e-6)


def test_the_loss_is_the_weighted_sum() -> None:
    z, logits, labels = draw(5, 6), draw(5, 3), torch.tensor([0, 1, 2, 0, 1])
    found = decorrelated(CROSS_ENTROPY, 0.3, "paper")(Forward(z, logits, labels))
    expected = F.cross_entropy(logits, labels) + 0.3 * correlation_penalty(z, None, "paper")
    torch.testing.assert_close(found, expected)


def test_the_base_loss_keeps_its_contract() -> None:
    base = {"_target_": "fedexp.losses.moon.Moon", "mu": 1.0, "temperature": 0.5}
    loss = decorrelated(base, 0.1, "paper")
    assert isinstance(loss, Moon)
    assert loss.reference_models == Moon.reference_models


def test_without_weight_it_is_the_base_loss() -> None:
    plain = federate(*SMALL)
    other = federate(*SMALL, "algorithm=feddecorr", "loss.beta=0")
    for federation in (plain, other):
        federation.run_round(1)
    for name, value in plain.server.weights.items():
        assert torch.equal(value, other.server.weights[name])


def test_the_presets_penalty_changes_the_first_round() -> None:
    """By more than a tenth of FedAvg's step; the paper's form with the same weight does not."""
    steps = {}
    for name in ("fedavg", "feddecorr", "feddecorr loss.form=paper"):
        federation = federate(*SMALL, *f"algorithm={name}".split())
        start = {n: w.clone() for n, w in federation.server.weights.items()}
        federation.run_round(1)
        weights = federation.server.weights
        steps[name] = torch.cat([(weights[n] - w).flatten() for n, w in start.items()])
    gaps = [(step - steps["fedavg"]).norm() / steps["fedavg"].norm() for step in steps.values()]
    assert gaps[1] > 0.1
    assert 0 < gaps[2] < 0.1


def test_training_makes_features_less_correlated() -> None:
    """The mean squared correlation of the global model's features after three rounds."""
    found = []
    for beta in (0, 1):
        federation = federate(*SMALL, "algorithm=feddecorr", f"loss.beta={beta}")
        for round in (1, 2, 3):
            federation.run_round(round)
        z = federation.global_model(3).outputs(federation.data.train.inputs).z.detach()
        found.append(correlation_penalty(z, None, "paper").item())
    assert found[1] < 0.9 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
@pytest.mark.parametrize(("form", "beta"), [("paper", 1), ("released", 0.1)])
def test_engines_agree(engine: str, form: Form, beta: float) -> None:
    """Batches of 16 leave shorter last ones of several lengths, which a stack pads.

    The correlations amplify rounding: initial weights that differ by half a unit in the last place
    end 2e-4 and more apart.
    """
    words = [*SMALL, "algorithm=feddecorr", f"loss.beta={beta}", f"loss.form={form}"]
    assert_engine_agrees(engine, words, rounds=1, rounding=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["moon", "ntd", "rpcl_cpdr", "balanced_softmax"])
def test_it_combines_with_other_losses_and_sockets(base: str) -> None:
    words = ["algorithm=fednh", "loss=decorrelated", f"loss@loss.base={base}"]
    federation = federate(*SMALL, *words, "regularizer=proximal")
    assert isinstance(federation.module.loss, Loss)
    for round in (1, 2):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100


def test_wrong_values_are_named() -> None:
    with pytest.raises(InputError, match=r"loss\.beta=-1"):
        federate(*SMALL, "algorithm=feddecorr", "loss.beta=-1")
    with pytest.raises(InputError, match=r"loss\.base\.mu=-1"):
        federate(*SMALL, "algorithm=feddecorr", "loss@loss.base=moon", "loss.base.mu=-1")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("loss=decorrelated", "loss@loss.base=moon")
