"""The check of a part on an accelerator: each broken rule names the part, the hook and the line."""

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from support.pretended_runs import DEVICE, NEEDS_COMPILER, new_process

from fedexp.testing import ContractError, check_part
from fedexp.testing.on_device import sent_from_device, trained
from fedexp.testing.pretended import Pretended

pytestmark = NEEDS_COMPILER

BROKEN = {
    "Mask": ("forward", "mixes a tensor of the CPU"),
    "InNumPy": ("report", "makes a NumPy array"),
    "ReportOnCpu": ("aggregate", "mixes a tensor"),
    "KeptTensor": ("forward", "make it a buffer"),
    "Waits": ("forward", "waits for the device in each training step"),
}
"""Part -> the hook that breaks a rule, and words about the rule."""


def part(name: str) -> str:
    return f"loss._target_=support.device_breakers.{name}"


def line(name: str, hook: str, rule: str, when: str = "") -> str:
    """The pattern of the error about this part, which is one line."""
    whose = rf"loss \(support\.device_breakers\.{name}\)"
    place = rf"{whose}: {hook}\(\.\.\.\), line \d+ of device_br"
    return rf"on an accelerator{when}, {place}[^\n]*{rule}[^\n]*\Z"


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """One process for all parts."""
    with new_process() as found:
        yield found


def refusal(name: str, rounds: int = 1) -> str:
    """What some rounds with this part say; empty if they say nothing."""
    Pretended.get_parallel_devices([0])
    try:
        trained([part(name), DEVICE], None, rounds)
    except ContractError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_names_part_and_hook(name: str, process: ProcessPoolExecutor) -> None:
    assert re.match(line(name, *BROKEN[name]), process.submit(refusal, name).result())


def test_a_sum_that_is_on_the_cpu_after_a_resume_is_named(process: ProcessPoolExecutor) -> None:
    found = process.submit(refusal, "OnCpuAfterResume", rounds=2).result()
    rule = "mixes a tensor of the CPU"
    assert re.match(line("OnCpuAfterResume", "aggregate", rule, " after a resume"), found)


def test_a_good_part_is_trained(process: ProcessPoolExecutor) -> None:
    assert process.submit(refusal, "OneNumberOnCpu").result() == ""


@pytest.mark.slow
def test_the_check_of_a_part_uses_a_process_of_its_own() -> None:
    check_part(part("OneNumberOnCpu"), device=True)
    with pytest.raises(ContractError, match=line("Waits", *BROKEN["Waits"])):
        sent_from_device([part("Waits")], None, rounds=1)
