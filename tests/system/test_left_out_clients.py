"""Clients of the cohort that are left out of a round: a sampler hears how long their turns take."""

import numpy as np
import pytest
import torch
from support.limited import SLOWER, limited

from fedexp.core.messages import count_bytes
from fedexp.samplers.oort import Oort
from fedexp.system.devices import Devices

LIMITS = {
    "over-selection": ["system.invite=5", "clients.per_round=2"],
    "deadline": ["system.deadline=4.1"],
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_client_that_is_always_too_slow_is_new_only_once(limit: str) -> None:
    """Client 4 takes 80 seconds for its 80 samples; without its registration it stays new."""
    federation = limited("sampler=oort", *LIMITS[limit])
    sampler = federation.sampler
    assert isinstance(sampler, Oort)
    federation.run_round(1)
    assert set(federation.measures.exchange.cohort) == set(range(5))
    merged = [int(client) for client in sampler.times_chosen.nonzero()]
    assert 4 not in merged
    assert sampler.utilities[4] == pytest.approx(sampler.utilities[merged].mean())
    assert sampler.last_rounds[4] == 1
    assert sampler.seconds[4] == pytest.approx(80, rel=1e-6)


def test_a_cohort_that_is_late_by_its_upload_has_the_seconds_of_whole_turns() -> None:
    """A message takes 1 second each way. Client 0 needs 0.8 seconds for its 80 samples."""
    federation = limited("sampler=oort", "system.deadline=2.5")
    lines = np.full(5, float(count_bytes(federation.server.weights)))
    federation.system.devices = Devices(np.array(SLOWER), lines, lines, np.zeros(5))
    federation.run_round(1)
    assert not federation.measures.exchange.receipts
    assert isinstance(federation.sampler, Oort)
    assert federation.sampler.seconds == pytest.approx([2.8, 4, 6, 10, 82])


def test_what_is_known_of_clients_that_were_left_out_is_in_the_checkpoint() -> None:
    whole, stopped, resumed = (limited("sampler=oort", *LIMITS["over-selection"]) for _ in "abc")
    for round in (1, 2, 3):
        whole.run_round(round)
    stopped.run_round(1)
    resumed.server.load_state_dict(stopped.server.state_dict())
    resumed.coordination.load_state_dict(stopped.coordination.state_dict())
    for round in (2, 3):
        resumed.run_round(round)
    assert resumed.measures.exchange.cohort == whole.measures.exchange.cohort
    for name, value in whole.sampler.server_state().items():
        found = resumed.sampler.server_state()[name]
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
