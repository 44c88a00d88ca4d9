"""The check of a part: bundled parts pass, and each broken rule is noticed."""

from pathlib import Path

import pytest
import torch
from support.federations import FEW_STEPS

from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.testing import ContractError, check_part
from fedexp.testing.comparison import compare

PRESETS = sorted(path.stem for path in Path(config_folder(), "algorithm").glob("*.yaml"))
BATCH_NORM = ["model.batch_norm=true"]
FURTHER = {
    "adcol": ["loss.hidden=16"],
    "fedetf": ["personalization.cycles=1"],
    "metafed": ["clients.count=2", "clients.per_round=1", "loss.threshold=0"],
    **dict.fromkeys(("fedap", "fedbn", "silobn"), BATCH_NORM),
    **dict.fromkeys(("fedprox_synthetic", "fedptr", "fedptr_s"), FEW_STEPS),
}
"""Preset -> overrides that it needs, or that shorten its work."""


@pytest.mark.matrix
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_keeps_the_contract(preset: str) -> None:
    """With three of four clients in a round, some train twice and need what they remember."""
    check_part(f"algorithm={preset}", "clients.per_round=3", *FURTHER.get(preset, []))


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss=moon", "sampler=power_of_choice"],
        ["compression@download=topk"],
    ],
    ids=" ".join,
)
def test_parts_keep_the_contract(overrides: list[str]) -> None:
    check_part(*overrides)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("WithoutKey", "two runs with the same seed differ"),
        ("SideChannel", "one half of the part uses data that the other half did not send"),
        ("LeftBehind", "depends on the client that trained before it"),
        ("Forgetful", r"a resumed run differs.*\(loss.scale"),
        ("Attribute", "depends on the client whose begin was called last"),
        ("Padded", r"engine=vectorized differs from serial; .* by batch\.mean \("),
    ],
)
def test_a_broken_rule_is_noticed(part: str, rule: str) -> None:
    with pytest.raises(ContractError, match=rule):
        check_part(f"loss._target_=support.contract_breakers.{part}")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "aggregator._target_=support.contract_breakers.InOneProcess",
            r"merge\(\.\.\.\) left out head",
        ),
        ("loss._target_=support.contract_breakers.WrongWhenStacked", "returned an int as samples"),
    ],
)
def test_a_wrong_result_is_one_line(override: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        check_part(override)


def test_a_report_that_is_not_finite_is_named_with_its_client_and_class() -> None:
    line = r"round 1: the update of client \d is not finite \(loss: means\[\d\]\)"
    with pytest.raises(InputError, match=f"^on_bad_update=raise: {line}$"):
        check_part("loss._target_=support.contract_breakers.Absent")


def test_a_wrong_override_is_one_line() -> None:
    with pytest.raises(InputError, match=r"regularizer\.mu=-1"):
        check_part("regularizer=proximal", "regularizer.mu=-1")


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        (["coordination=buffered", "coordination.buffer=2", "system=phones"], "coordination"),
        (["system=phones", "system.deadline=100"], r"system\.deadline"),
        (["availability=bernoulli", "system=phones"], "availability"),
        (["faults=unreliable"], "faults"),
    ],
    ids=["coordination", "deadline", "availability", "faults"],
)
def test_rounds_without_some_clients_are_refused(overrides: list[str], option: str) -> None:
    with pytest.raises(InputError, match=f"{option}.*: check_part needs the default"):
        check_part(*overrides)


def test_unknown_values_are_equal_and_a_number_is_no_tensor() -> None:
    unknown = torch.tensor([1.0, torch.nan, torch.inf])
    near = unknown + torch.tensor([0.1, 0.0, 0.0])
    compare({"a": unknown}, lambda: {"a": near}, "rule", tolerance=0.2)
    compare({"a": unknown}, lambda: {"a": unknown.clone()}, "rule")
    for other in (unknown.flip(0), 1.0):
        with pytest.raises(ContractError, match=r"^rule \(a "):
            compare({"a": unknown}, lambda other=other: {"a": other}, "rule")
