"""Further initial models, which a part may ask for."""

from typing import Any

import torch
from support.federations import compose, federate

from fedexp.core.messages import Tensors
from fedexp.core.part import Setting
from fedexp.core.sockets import Personalization
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

OPTION = "personalization._target_=test_further_models.AsksForModels"


class AsksForModels(Personalization):
    """Keeps two further initial models."""

    def setup(self, setting: Setting) -> None:
        self.drawn = [setting.server.draw_model(number) for number in (1, 2)]


def test_each_number_has_its_own_model() -> None:
    federation = federate(OPTION)
    weights, (one, other) = federation.server.weights, _drawn(federation)
    assert one.keys() == other.keys() == weights.keys()
    for name, value in weights.items():
        assert len({tuple(each[name].flatten().tolist()) for each in (one, other)}) == 2, name
        assert value.shape == one[name].shape
        assert not torch.equal(value, one[name])
        assert 0.5 < one[name].std() / value.std() < 2, name  # the same distribution


def test_the_draws_have_keys() -> None:
    torch.manual_seed(1)
    first = _drawn(federate(OPTION))
    torch.manual_seed(2)
    second = _drawn(federate(OPTION))
    assert all(torch.equal(a[n], b[n]) for a, b in zip(first, second, strict=True) for n in a)
    assert not torch.equal(
        _drawn(federate(OPTION, "seed=1"))[0]["head.linear.weight"], first[0]["head.linear.weight"]
    )


def test_fixed_weights_and_buffers_of_the_head_are_left_out() -> None:
    drawn = _drawn(federate(OPTION, "model.train=[head]", "head=adapted_linear"))
    assert drawn[0].keys() == {"head.linear.weight"}


def test_the_initial_model_itself_does_not_change() -> None:
    assert torch.equal(
        federate(OPTION).server.weights["head.linear.weight"],
        federate().server.weights["head.linear.weight"],
    )
    assert plan(compose()).head() is not plan(compose()).sockets.head


def _drawn(federation: Federation) -> list[Tensors]:
    part: Any = federation.engine.resources.personalization
    drawn: list[Tensors] = part.drawn
    return drawn
