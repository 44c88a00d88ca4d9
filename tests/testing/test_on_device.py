"""The check of a part on an accelerator: each broken rule names the part, the hook and the line."""

import pytest
from support.pretended_runs import NEEDS_COMPILER

from fedexp.testing import ContractError, check_part
from fedexp.testing.on_device import sent_from_device

pytestmark = NEEDS_COMPILER


def part(name: str) -> str:
    return f"loss._target_=support.device_breakers.{name}"


def test_a_good_part_has_the_bits_of_the_cpu_and_may_report_numbers_on_it() -> None:
    check_part(part("OneNumberOnCpu"), device=True)


@pytest.mark.parametrize(
    ("name", "hook", "rule"),
    [
        pytest.param("Mask", "forward", "mixes a tensor of the CPU", marks=pytest.mark.slow),
        pytest.param("InNumPy", "report", "makes a NumPy array", marks=pytest.mark.slow),
        pytest.param("ReportOnCpu", "aggregate", "mixes a tensor", marks=pytest.mark.slow),
        pytest.param("KeptTensor", "forward", "make it a buffer", marks=pytest.mark.slow),
        ("Waits", "forward", "waits for the device in each training step"),
    ],
)
def test_a_broken_rule_names_part_and_hook(name: str, hook: str, rule: str) -> None:
    where = rf"loss \(support\.device_breakers\.{name}\): {hook}\(\.\.\.\), line \d+ of device_br"
    with pytest.raises(ContractError, match=rf"^on an accelerator, {where}.*{rule}") as error:
        sent_from_device([part(name)], None, rounds=1)
    assert "\n" not in str(error.value)
