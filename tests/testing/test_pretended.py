"""The pretended device: refuses like a GPU, computes like the CPU, and tells of waits."""

import os
from collections.abc import Callable

import pytest
import torch
from support.pretended_runs import NEEDS_COMPILER, both, new_process, waits

import fedexp
from fedexp.errors import InputError
from fedexp.testing.pretended import Pretended

pytestmark = NEEDS_COMPILER


def _refused(work: Callable[[], object]) -> str:
    try:
        work()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


def _refusals() -> list[str]:
    """The errors of calls that a GPU refuses."""
    (device,) = Pretended.get_parallel_devices([0])
    x, cpu = torch.arange(6.0, device=device).view(2, 3), torch.ones(2, 3)
    calls: list[Callable[[], object]] = [
        lambda: x + cpu,
        lambda: torch.where(cpu > 0, x, x),
        lambda: torch.stack([x.sum(), cpu.sum()]),
        lambda: cpu.sum().add_(x.sum()),
        lambda: torch.nn.functional.linear(x, cpu),
        lambda: torch.rand(3, device=device, generator=torch.Generator()),
        x.numpy,
    ]
    return [_refused(call) for call in calls]


def test_it_refuses_what_a_gpu_refuses() -> None:
    with new_process() as process:
        *mixed, generator, numpy = process.submit(_refusals).result()
    assert all("found at least two devices, pretended:0 and cpu!" in each for each in mixed)
    assert "Expected a 'pretended:0' generator" in generator
    assert "can't convert pretended:0 device type tensor to numpy" in numpy


def _heard() -> dict[str, list[str]]:
    """Call -> the waits that it makes."""
    (device,) = Pretended.get_parallel_devices([0])
    x, cpu = torch.arange(6.0, device=device), torch.ones(6)
    calls: dict[str, Callable[[], object]] = {
        "a number": lambda: x.sum().item(),
        "a decision": lambda: bool(x.any()),
        "to the host": x.cpu,
        "to the device": lambda: cpu.to(device),
        "from page-locked memory": lambda: cpu.pin_memory().to(device, non_blocking=True),
        "an index on the CPU": lambda: x[torch.tensor([0, 1])],
        "a mask": lambda: x[x > 2],
        "values where a mask is true": lambda: x.index_put_((x > 2,), x[3:]),
        "a value where a mask is true": lambda: x.masked_fill(x > 2, 0.0),
        "arithmetic": lambda: (2 * x + 1).sum().sqrt(),
        "a constant": lambda: torch.full((3,), 2.0, device=device),
        "a number of the CPU": lambda: x * torch.tensor(2.0),
    }
    found = {}
    for name, call in calls.items():
        with waits() as heard:
            call()
        found[name] = sorted({each.what for each in heard})
    return found


def test_it_tells_where_a_program_would_wait() -> None:
    with new_process() as process:
        found = process.submit(_heard).result()
    assert {name: heard for name, heard in found.items() if heard} == {
        "a number": ["item"],
        "a decision": ["item"],
        "to the host": ["copy to the host"],
        "to the device": ["copy to the device"],
        "an index on the CPU": ["copy to the device"],
        "a mask": ["aten::nonzero"],
        "values where a mask is true": ["aten::_index_put_impl_"],
    }


def _drawn() -> list[torch.Tensor]:
    """Draws on the device and on the CPU from the same seed, with and without a generator."""
    (device,) = Pretended.get_parallel_devices([0])
    found = []
    for place in (device, torch.device("cpu")):
        torch.manual_seed(3)
        own = torch.Generator(place).manual_seed(5)
        pairs = [
            (torch.rand(2, device=place), torch.rand(2, device=place, generator=own))
            for _ in range(2)
        ]
        found.append(torch.stack([torch.cat(pair) for pair in pairs]).cpu())
    return found


def test_its_generators_draw_as_on_the_cpu() -> None:
    with new_process() as process:
        device, cpu = process.submit(_drawn).result()
    assert torch.equal(device, cpu)
    assert not torch.equal(device[0], device[1])


@pytest.mark.parametrize("overrides", [["algorithm=fednh"], ["algorithm=fednova"]], ids=" ".join)
def test_a_run_on_it_has_the_bits_of_the_cpu(overrides: list[str]) -> None:
    with new_process() as process:
        cpu, device = process.submit(both, overrides, dict(os.environ)).result()
    assert device[:2] == cpu[:2]


def test_a_class_that_is_no_accelerator_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^engine\.device=torch\.nn\.Linear: should be a subcla"):
        fedexp.run(["algorithm=fedavg", "engine.device=torch.nn.Linear"])
    with pytest.raises(InputError, match=r"^engine\.device=gpu: should be auto, cpu, cuda or an "):
        fedexp.run(["algorithm=fedavg", "engine.device=gpu"])
