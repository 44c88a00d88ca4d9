"""A padded batch has the loss and the gradient of the batch without padding."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fedexp.core.forward import Forward, Outputs, mean_over
from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Loss
from fedexp.losses.adjusted import Adjusted, BalancedSoftmax, LogitCalibration, RestrictedSoftmax
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.losses.moon import Moon
from fedexp.losses.ntd import NotTrueDistillation
from fedexp.losses.prototype_align import PrototypeAlign
from fedexp.losses.relaxed_contrastive import Pairs, RelaxedContrastive
from fedexp.losses.rpcl_cpdr import RpclCpdr

CLASSES, DIM, SAMPLES, PADDING = 4, 6, 5, 3


SETTING = Setting(0, 1, CLASSES, DIM, 9, 3, Clients.of(torch.ones(9, CLASSES)), Model({}))


def semantic() -> Loss:
    """RPCL and CPDR with prototypes of three clients; class 3 has none."""
    loss = RpclCpdr(1.0, 1.0, 1.0, 0.5, "batch", "mse", 2, "angle")
    loss.setup(SETTING)
    draw = torch.Generator().manual_seed(1)
    loss.relational = torch.randn(3, CLASSES, DIM, generator=draw)
    loss.consistent = loss.relational.mean(0)
    loss.holds = torch.tensor([[True, True, True, False]] * 3)
    loss.consistent_holds = loss.holds[0]
    return loss


def aligned() -> Loss:
    """Prototype alignment; class 3 has no prototype."""
    loss = PrototypeAlign(1.0, "exclude", "samples", "none", "trained")
    loss.setup(SETTING)
    draw = torch.Generator().manual_seed(1)
    sent = {
        "prototypes": torch.randn(CLASSES, DIM, generator=draw),
        "holds": torch.tensor([True, True, True, False]),
    }
    loss.receive(PartMessage(2, {}, sent))
    return loss


def adjusted(loss: Adjusted) -> Loss:
    """The loss at a client that lacks class 0, the label of the padding."""
    loss.setup(SETTING)
    data = SimpleNamespace(class_counts=torch.tensor([0, 3, 9, 1]))
    client: Any = SimpleNamespace(data=data, is_personal=False)
    loss.begin(client, PartMessage(1, {}), {})
    return loss


LOSSES = {
    "ce": CrossEntropy(),
    "semantic": semantic(),
    "moon": Moon(2.0, 0.5),
    "ntd": NotTrueDistillation(2.0, 3.0),
    "logit_calibration": adjusted(LogitCalibration(1.0)),
    "restricted_softmax": adjusted(RestrictedSoftmax(0.5, "absent")),
    "balanced_softmax": adjusted(BalancedSoftmax()),
    "prototype_align": aligned(),
    **{p: RelaxedContrastive(0.5, 0.0, 2.0, 2, p) for p in get_args(Pairs)},
}


def gradient(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_padding_changes_nothing(loss: Loss) -> None:
    draw = torch.Generator().manual_seed(0)

    def outputs(count: int) -> Outputs:
        return Outputs(
            torch.randn(count, DIM, generator=draw), torch.randn(count, CLASSES, generator=draw)
        )

    z, logits = (each.requires_grad_() for each in outputs(SAMPLES))
    y = torch.tensor([2, 1, 3, 2, 1])
    references = {name: outputs(SAMPLES) for name in loss.reference_models}
    plain = loss(Forward(z, logits, y, levels=(z,)), **references)
    expected = gradient(plain, z, logits)

    padding = {name: outputs(PADDING) for name in ("model", *loss.reference_models)}
    padded = loss(
        Forward(
            torch.cat([z, padding["model"].z]),
            torch.cat([logits, padding["model"].logits]),
            torch.cat([y, torch.zeros(PADDING, dtype=torch.int64)]),
            torch.tensor([1.0] * SAMPLES + [0.0] * PADDING),
            levels=(torch.cat([z, padding["model"].z]),),
        ),
        **{
            name: Outputs(*(torch.cat(pair) for pair in zip(own, padding[name], strict=True)))
            for name, own in references.items()
        },
    )
    torch.testing.assert_close(padded, plain)
    torch.testing.assert_close(gradient(padded, z, logits), expected)


def test_values_without_weight_may_be_infinite() -> None:
    values = torch.tensor([[1.0, 2.0], [torch.inf, torch.nan], [3.0, 6.0]])
    found = mean_over(values, torch.tensor([1, 0, 1]))
    assert found.tolist() == [2.0, 4.0]


def test_the_mean_without_any_weight_is_zero() -> None:
    assert mean_over(torch.tensor([torch.inf]), torch.tensor([0.0])).item() == 0
