"""A round whose merged weights the server refuses does not count."""

import copy

import pytest
import torch
from support.federations import federate

from fedexp.runtime.federation import Federation

SMALL = ["clients.count=4", "clients.per_round=3", "data.subset=80", "local.epochs=1"]
SMALL += ["model.hidden=[]", "model.feature_dim=8", "measure.personal=null"]
STATEFUL = [
    ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.memory=2"],
    ["aggregator=fltrust", "aggregator.samples=20"],
    ["aggregator=momentum"],
    ["aggregator=yogi"],
    ["aggregator=agnostic"],
    ["aggregator=centered_clipping"],
]


def with_refused_rounds(*overrides: str) -> Federation:
    """A federation after one round; all later merged weights are refused."""
    federation = federate(*SMALL, *overrides)
    federation.run_round(1)
    federation.quarantine.accepts_model = lambda weights, round: False  # type: ignore[method-assign]
    return federation


@pytest.mark.parametrize("overrides", STATEFUL, ids=lambda overrides: overrides[0])
def test_the_aggregator_is_as_before(overrides: list[str]) -> None:
    federation = with_refused_rounds(*overrides)
    aggregator = federation.server.aggregator
    before = copy.deepcopy(aggregator.server_state())
    stored = set(aggregator.store or ())
    assert before
    for round in (2, 3):
        assert federation.run_round(round).metrics["server/quarantined"] == 1
        torch.testing.assert_close(aggregator.server_state(), before, rtol=0, atol=0)
        assert set(aggregator.store or ()) == stored


def test_a_refused_release_has_spent_privacy() -> None:
    federation = with_refused_rounds("aggregator=private", "aggregator.delta=0.1")
    federation.run_round(2)
    assert federation.server.aggregator.server_state() == {"releases": 2}
