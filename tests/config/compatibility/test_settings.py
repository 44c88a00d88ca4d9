"""Settings that exclude each other."""

import pytest
from support.federations import compose

from fedexp.errors import InputError
from fedexp.runtime.plan import plan


def test_initial_weights_are_drawn_or_read() -> None:
    with pytest.raises(InputError, match=r"^model\.init=xavier_relu: would replace model"):
        plan(compose("model=torchvision", "model.weights=absent.pt", "model.init=xavier_relu"))
