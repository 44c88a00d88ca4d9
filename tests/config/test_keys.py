"""Differences of configs."""

import pytest
from support.federations import compose

from fedexp.config.keys import differences
from fedexp.reporting.labels import changes_results


@pytest.mark.parametrize(
    "override",
    [
        *["rounds=7", "tracking.progress=false", "engine.device=cpu", "checkpoint.every=1"],
        *["resume=auto", "clients.ram_gib=1", "data.cache=/elsewhere"],
    ],
)
def test_keys_that_may_change_at_a_resume(override: str) -> None:
    old, new = (compose(*each).model_dump(mode="json") for each in ((), (override,)))
    assert old != new
    assert differences(old, new) == []


def test_options_of_the_trainer_change_the_training() -> None:
    """So a run is not resumed with others, and their runs have another label."""
    serial, trainer = (
        compose(f"engine={name}").model_dump(mode="json") for name in ("serial", "trainer")
    )
    assert differences(serial, trainer) == []
    steps = "engine.options.accumulate_grad_batches"
    sums_up = compose("engine=trainer", f"+{steps}=4").model_dump(mode="json")
    assert differences(serial, sums_up) == [f"{steps}=(nothing)"]
    assert changes_results(steps)
    assert not changes_results("engine")


def test_differences_name_what_the_old_config_had() -> None:
    old, new = {"a": {"b": 1, "c": [1]}, "d": None}, {"a": {"b": 2, "c": [1]}, "e": 0}
    assert differences(old, new) == ["a.b=1", "d=None", "e=(nothing)"]
