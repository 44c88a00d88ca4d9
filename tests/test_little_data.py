"""Federations that hardly are any: one client, one class, one sample."""

import math

import pytest
from support.federations import federate

WORLDS = {
    "one client": [
        "clients.count=1",
        "clients.per_round=1",
        "data._target_=support.toy_sets.Noise",
    ],
    "one class": [
        "clients.count=4",
        "clients.per_round=2",
        "data._target_=support.toy_sets.OneClass",
    ],
    "one sample": [
        "clients.count=4",
        "clients.per_round=2",
        "data._target_=support.toy_sets.OneSample",
    ],
    "one of all": [
        "clients.count=1",
        "clients.per_round=1",
        "data._target_=support.toy_sets.NothingElse",
    ],
    "one sample each": [
        *["clients.count=4", "clients.per_round=4", "data._target_=support.toy_sets.OneEach"],
        *["partition=shards", "partition.classes_per_client=1"],
    ],
}
SMALL_MATCHING = ["regularizer.ipc=1", "regularizer.outer_steps=1", "regularizer.inner_steps=1"]
METHODS = [
    ["algorithm=fednh"],
    ["algorithm=fedgela"],
    ["algorithm=fedsc"],
    ["algorithm=fedptr", *SMALL_MATCHING],
    ["algorithm=scaffold"],
    ["algorithm=fedrod"],
    ["algorithm=moon"],
    ["sampler=hics"],
    ["sampler=clustered"],
    ["sampler=divfl"],
    ["sampler=power_of_choice"],
    ["aggregator=centered_clipping"],
    ["engine=vectorized"],
]


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[0])
@pytest.mark.parametrize("world", WORLDS)
def test_little_data_is_enough(world: str, method: list[str]) -> None:
    words = ["~data.split_seed", "local.epochs=1", "measure.personal.every=1"]
    federation = federate(*WORLDS[world], *method, *words)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
    assert 0 <= metrics["global/accuracy"] <= 1
    assert metrics["clients/quarantined"] == 0
    assert all(math.isfinite(value) for value in metrics.values()), metrics
