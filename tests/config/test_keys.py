"""Differences of configs."""

import pytest
from support.federations import compose

from fedexp.config.keys import differences


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


def test_differences_name_what_the_old_config_had() -> None:
    old, new = {"a": {"b": 1, "c": [1]}, "d": None}, {"a": {"b": 2, "c": [1]}, "e": 0}
    assert differences(old, new) == ["a.b=1", "d=None", "e=(nothing)"]
