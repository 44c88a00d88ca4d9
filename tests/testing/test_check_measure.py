"""The check of a measure: bundled measures pass, and each broken rule is noticed."""

import pytest

from fedexp.errors import InputError
from fedexp.testing import ContractError, check_measure


@pytest.mark.parametrize(
    "overrides",
    [
        ["+measure=[forgetting,clients,cohort,fairness,step_cosine]"],
        ["personalization=finetune_best", "data.validation=0.2"],
    ],
    ids=" ".join,
)
def test_measures_keep_the_contract(overrides: list[str]) -> None:
    check_measure(*overrides)


@pytest.mark.parametrize(
    ("measure", "rule"),
    [
        ("WithoutKey", r"two runs with the same seed differ.*\(round 1: own/draw is "),
        ("OtherTable", r"two runs with the same seed differ.*\(round 1: column draw of own is "),
        ("Meddling", r"training differs with the measure.*\(weights\."),
        ("Forgetful", r"a resumed run differs.*state_dict \(round 2: own/rounds is 2.0 and 1.0"),
        ("Alone", r"two processes differ.*contribution \(round 1: own/samples is "),
        ("NeverMeasured", "the headline own/score is measured in no round"),
        ("NotFinite", "the headline own/score is nan"),
    ],
)
def test_a_measure_that_breaks_a_rule_is_noticed(measure: str, rule: str) -> None:
    with pytest.raises(ContractError, match=rule):
        check_measure(f"+measure.own._target_=support.measure_breakers.{measure}")


def test_a_wrong_result_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^measure\.own \(.*NoResult\): .*returned None"):
        check_measure("+measure.own._target_=support.measure_breakers.NoResult")
