"""Properties that all normalised heads share."""

from typing import Any

import pytest
import torch
from support.federations import compose
from torch import Tensor
from torch.func import functional_call, vmap

from fedexp.core.sockets import Head
from fedexp.errors import InputError
from fedexp.heads.cosine import Cosine
from fedexp.heads.etf import ETF
from fedexp.heads.prototype import Prototype
from fedexp.heads.sphere import Scale
from fedexp.runtime.plan import plan

C, D = 4, 6
TRAINED, FIXED = Scale(init=20, trainable=True), Scale(init=30, trainable=False)


def cosine(scale: Scale = TRAINED) -> Head:
    return Cosine(D, C, scale)


def prototype(scale: Scale = TRAINED) -> Head:
    return Prototype(D, C, scale, True, "maximin", 0.9, "count", False, False)


def etf(feature_norm: Any = "l2") -> Head:
    return ETF(D, C, 100.0, feature_norm, True, "linear", "client", "exclude")


def raw_prototype() -> Head:
    return Prototype(D, C, TRAINED, False, "maximin", 0.9, "count", False, False)


HEADS = {
    "cosine": cosine,
    "prototype": prototype,
    "raw prototype": raw_prototype,
    "etf": etf,
    "etf batchnorm": lambda: etf("batchnorm"),
    "etf affine batchnorm": lambda: etf("batchnorm_affine"),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_gradients_by_finite_differences(make: Any) -> None:
    torch.manual_seed(0)
    head = make().double()
    z = torch.randn(5, D, dtype=torch.float64, requires_grad=True)
    parameters = dict(head.named_parameters())

    def logits(z: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        result: Tensor = functional_call(head, named, z)
        return result

    assert torch.autograd.gradcheck(logits, (z, *parameters.values()))


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_clients_can_be_stacked(make: Any) -> None:
    """The parameters and buffers of three clients in one vmap, each with its own counts."""
    torch.manual_seed(0)
    heads = [make() for _ in range(3)]
    for head, counts in zip(heads, ([1, 2, 0, 0], [5, 1, 1, 1], [0, 0, 0, 9]), strict=True):
        if isinstance(head, ETF):
            client: Any = Client(torch.tensor(counts))
            head.begin(client, client, {})
    states = [{n: t.clone() for n, t in h.state_dict(keep_vars=False).items()} for h in heads]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    z = torch.randn(3, 5, D)
    template = make()
    together = vmap(lambda state, z: functional_call(template, state, z))(stacked, z)
    for head, features, logits in zip(heads, z, together, strict=True):
        torch.testing.assert_close(logits, head(features), atol=1e-5, rtol=1e-5)


class Client:
    """The attributes of a client that ``begin`` reads."""

    def __init__(self, class_counts: Tensor) -> None:
        self.data, self.class_counts = self, class_counts


@pytest.mark.parametrize("make", [cosine, prototype], ids=["cosine", "prototype"])
def test_a_constant_scale_is_no_parameter(make: Any) -> None:
    trained, fixed = make(TRAINED), make(FIXED)
    assert set(dict(trained.named_parameters())) - set(dict(fixed.named_parameters())) == {"scale"}
    assert trained.scale.shape == ()
    z = torch.randn(3, D)
    trained.load_state_dict(fixed.state_dict(), strict=False)
    torch.testing.assert_close(trained(z) / 20, fixed(z) / 30)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("head=cosine head.scale.init=0", "head.scale.init=0: should be greater than 0"),
        ("head=cosine head.scale.trainable=maybe", "head.scale.trainable=maybe: should be a valid"),
        ("head=cosine +head.scale.final=3", "head.scale.final: unknown key; there are init, tr"),
        ("head=prototype head.rho=1.5", "head.rho=1.5: should be less than or equal to 1"),
        ("head=prototype head.init=even", "head.init=even: should be 'maximin', 'orthogonal' or"),
        ("head=prototype head.weighting=n", "head.weighting=n: should be 'count' or 'uniform'"),
        ("head=etf head.energy=0", "head.energy=0: should be greater than 0"),
        ("head=etf head.phi=cube", "head.phi=cube: should be 'linear', 'sqrt' or 'exp'"),
        ("head=etf head.missing=x", "head.missing=x: should be 'exclude' or 'zero_logit'"),
        ("head=etf head.feature_norm=x", "head.feature_norm=x: should be 'l2', 'batchnorm' or 'b"),
        ("head=etf head.phi_normalization=x", "head.phi_normalization=x: should be 'client' or"),
        (
            "head=etf model.feature_dim=2",
            "head=etf: model.feature_dim=2 is too small for 10 classes; use at least 9",
        ),
    ],
)
def test_a_wrong_option_is_one_line_before_data(
    overrides: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedexp.data.readers.digits.Digits.load", lambda *_: pytest.fail("data was loaded")
    )
    with pytest.raises(InputError) as caught:
        plan(compose(*overrides.split()))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
