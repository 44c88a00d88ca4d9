"""Where images lie by default, and compiled steps."""

import pytest
import torch
from support.federations import compose, federate
from torch import nn

from fedexp.engines.layout import gains_from_bf16, prefers_channels_last
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONVOLUTION = nn.Conv2d(3, 8, 3)


@pytest.mark.parametrize(
    ("layers", "device", "precision", "pays"),
    [
        ([nn.Linear(3, 8)], CPU, "32-true", False),
        ([CONVOLUTION], CPU, "32-true", True),
        ([CONVOLUTION, nn.GroupNorm(2, 8)], CPU, "32-true", True),
        ([CONVOLUTION, nn.GroupNorm(8, 8)], CPU, "32-true", False),
        ([CONVOLUTION], GPU, "32-true", False),
        ([CONVOLUTION], GPU, "bf16-mixed", True),
    ],
)
def test_where_channels_had_better_come_last(
    layers: list[nn.Module], device: torch.device, precision: str, pays: bool
) -> None:
    assert prefers_channels_last(nn.Sequential(*layers), device, precision) is pays


@pytest.mark.parametrize(
    ("instructions", "layer", "device", "precision", "gains"),
    [
        ("amx_bf16", CONVOLUTION, CPU, "32-true", True),
        ("avx512_bf16", CONVOLUTION, CPU, "32-true", True),
        ("avx2", CONVOLUTION, CPU, "32-true", False),
        ("amx_bf16", nn.Linear(3, 8), CPU, "32-true", False),
        ("amx_bf16", CONVOLUTION, GPU, "32-true", False),
        ("amx_bf16", CONVOLUTION, CPU, "bf16-mixed", False),
    ],
)
def test_where_16_bits_are_faster(
    instructions: str,
    layer: nn.Module,
    device: torch.device,
    precision: str,
    gains: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True}, raising=False)
    assert gains_from_bf16(nn.Sequential(layer), device, precision) is gains


IMAGES = ["data.subset=60", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
CNN = ["model=resnet10", "model.norm=group"]


@pytest.mark.parametrize(
    ("overrides", "last"),
    [(CNN, True), ([*CNN, "engine.channels_last=false"], False), (["model=mlp"], None)],
)
def test_the_default_follows_it(overrides: list[str], last: bool | None) -> None:
    weights = federate(*IMAGES, *overrides).module.weights.values()
    kernels = [
        weight for weight in weights if weight.dim() == 4 and weight.shape[1] > 1 < weight.shape[2]
    ]
    found = {kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels}
    assert found == (set() if last is None else {last})


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["true", "reduce-overhead"])
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_compiled_steps_are_the_same_steps(engine: str, mode: str) -> None:
    method = [*IMAGES, "algorithm=fednh", f"engine={engine}"]
    plain, compiled = federate(*method), federate(*method, f"engine.compile={mode}")
    for federation in (plain, compiled):
        federation.run_round(1)
    for name, weight in plain.server.weights.items():
        torch.testing.assert_close(compiled.server.weights[name], weight, atol=1e-5, rtol=1e-4)


def test_no_second_derivatives_of_compiled_code() -> None:
    with pytest.raises(InputError, match=r"engine\.compile: .*which this regularizer needs"):
        plan(compose("algorithm=fedptr", "engine.compile=true"))


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> object:
        raise RuntimeError("no C++ compiler found\nTraceback ...")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(InputError, match=r"^engine\.compile: .*no C\+\+ compiler found\)$"):
        federate("engine.compile=true")
