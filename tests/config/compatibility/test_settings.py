"""Settings that exclude each other."""

import pytest
from support.federations import compose

from fedexp.errors import InputError
from fedexp.runtime.plan import plan


def test_initial_weights_are_drawn_or_read() -> None:
    with pytest.raises(InputError, match=r"^model\.init=xavier_relu: would replace model"):
        plan(compose("model=torchvision", "model.weights=absent.pt", "model.init=xavier_relu"))


def test_initial_weights_of_one_of_several_backbones_are_drawn_or_read() -> None:
    large = ["model@model.groups.large.model=torchvision", "model.groups.large.model.weights=a.pt"]
    with pytest.raises(
        InputError, match=r"would replace model\.groups\.large\.model\.weights=a\.pt; should be def"
    ):
        plan(compose("model=mixed", *large, "model.init=xavier_relu"))
