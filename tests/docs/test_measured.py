"""The stored runs on digits, which the options' pages show."""

import json
import shlex

import pytest
from generate.measured import FOLDER, GLOBAL, Runs, mean_and_spread, path, runs
from generate.options import Option, all_options, find
from generate.run_plan import overrides, reason_for_none

MEASURED = [option for option in all_options() if not reason_for_none(option)]


@pytest.mark.parametrize("option", MEASURED, ids=lambda each: f"{each.group}/{each.name}")
def test_an_option_has_runs_of_the_command_on_its_page(option: Option) -> None:
    """If not: ``bash scripts/docs.sh --measure GROUP/NAME``."""
    stored = json.loads(path(option.group, option.name).read_text())
    assert shlex.split(stored["command"])[1:] == overrides(option)
    if "not_measured" not in stored:
        seeds = [run["seed"] for run in stored["runs"]]
        assert seeds == sorted(set(seeds)) != []
        assert all(run["upload_bytes"] >= 0 and run["seconds"] > 0 for run in stored["runs"])


def test_no_run_is_stored_of_an_option_that_is_gone() -> None:
    known = {path(option.group, option.name) for option in MEASURED}
    assert [file for file in FOLDER.rglob("*.json") if file not in known] == []


def test_fedavg_learns_the_digits() -> None:
    found = runs("algorithm", "fedavg")
    assert isinstance(found, Runs)
    assert all(value > 0.9 for value in found.final("global/accuracy"))
    assert len(found.curve("global/accuracy")) == 30


def test_a_method_without_a_global_model_has_no_global_accuracy() -> None:
    found = runs("algorithm", "fedper")
    assert isinstance(found, Runs)
    assert not found.final("global/accuracy")
    assert found.final("personal/accuracy_local")


def test_other_data_have_a_reason() -> None:
    assert reason_for_none(find("data", "cifar10"))
    assert not reason_for_none(find("data", "digits"))


def test_one_seed_has_no_spread() -> None:
    assert mean_and_spread([0.5]) == "0.500"
    assert mean_and_spread([0.4, 0.6]) == "0.500 ± 0.141"
    assert mean_and_spread([]) == ""


def finals(group: str, name: str) -> list[str]:
    """The last global accuracies of the stored runs, as a comment writes them."""
    found = runs(group, name)
    assert isinstance(found, Runs)
    return [f"{each:.2f}" for each in found.final(GLOBAL)]


@pytest.mark.parametrize(
    ("group", "name", "preset", "said"),
    [
        ("gradient", "client_momentum", "fedcm", "fell from {early} in round 11 to {own} in "),
        ("gradient", "sam_momentum", "mofedsam", "was {own} after 30 rounds"),
        ("regularizer", "drift_correction", "feddc", "was {own} after 30 rounds (three seeds)"),
    ],
)
def test_a_comment_on_momentum_has_the_numbers_of_the_runs(
    group: str, name: str, preset: str, said: str
) -> None:
    summary, found = find(group, name).summary, runs(group, name)
    assert isinstance(found, Runs)
    early = f"{dict(found.curve(GLOBAL))[11]:.2f}"
    assert said.format(early=early, own=" and ".join(listed(finals(group, name)))) in summary
    assert f"had {' and '.join(finals('algorithm', preset))} (" in summary


def listed(words: list[str]) -> list[str]:
    """All words but the last, with commas between them, and the last."""
    return [", ".join(words[:-1]), words[-1]] if len(words) > 1 else words
