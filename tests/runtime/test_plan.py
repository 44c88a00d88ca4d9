"""Components that cannot share a run with several processes are refused before they start."""

import pytest
from support.federations import compose

from fedexp.errors import InputError
from fedexp.runtime.plan import plan

TWO = ("engine.devices=2", "engine.device=cpu")


@pytest.mark.parametrize(
    ("override", "component", "missing"),
    [
        (
            "aggregator._target_=support.contract_breakers.InOneProcess",
            "aggregator (support.contract_breakers.InOneProcess)",
            "no contribution and no set_reduced",
        ),
        (
            "+measure.own._target_=support.measure_breakers.OneSided",
            "measure.own (support.measure_breakers.OneSided)",
            "no set_reduced",
        ),
    ],
)
def test_a_component_without_hooks_for_several_processes(
    override: str, component: str, missing: str
) -> None:
    with pytest.raises(InputError) as raised:
        plan(compose(override, *TWO))
    assert str(raised.value) == (
        f"engine.devices=2 engine.num_nodes=1: {component} has {missing}, which several processes "
        "need; should be one process"
    )
    assert plan(compose(override))
