"""Settings that exclude each other."""

import pytest
import torch
from federations import compose

from fedexp.errors import InputError
from fedexp.runtime.plan import plan


@pytest.mark.parametrize("override", ["engine.devices=2", "engine.compile=true"])
def test_overlapped_evaluation_wants_one_process_of_plain_code(override: str) -> None:
    config = compose("evaluation.overlap=true", "engine.device=cpu", override)
    with pytest.raises(InputError, match=r"^evaluation\.overlap=true: works on a CPU, in one"):
        plan(config)


def test_overlapped_evaluation_wants_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("evaluation.overlap=true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"^evaluation\.overlap=true: works on a CPU, in one"):
        plan(config)
    plan(compose("evaluation.overlap=true", "engine.device=cpu"))


def test_initial_weights_are_drawn_or_read() -> None:
    with pytest.raises(InputError, match=r"^model\.init=xavier_relu: would replace model"):
        plan(compose("model=torchvision", "model.weights=absent.pt", "model.init=xavier_relu"))
