"""What the parts of a federation are told before the first round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.federations import compose

from fedexp.core.messages import count_bytes
from fedexp.core.part import Setting
from fedexp.data.load import load_data
from fedexp.distributed.fabric import cpu_fabric
from fedexp.engines.schedule import Schedule
from fedexp.runtime.assembly import assemble
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.runtime.population import SIMULATED, Population


class Deployed(Population):
    """Clients that know the seed of the run, and a server with a secret seed."""

    def known(self, setting: Setting) -> Setting:
        return replace(setting, server=replace(setting.server, secret_seed=4711))


def cohorts(aggregator: str, population: Population) -> list[list[int]]:
    """The cohorts of ten rounds."""
    words = [f"aggregator={aggregator}", "clients.count=10", "clients.per_round=3"]
    planned, fabric = plan(compose(*words, "data.subset=200")), cpu_fabric()
    data = population.load(planned.config, planned.source, torch.device("cpu"))
    federation = Federation(planned, fabric, data, population=population)
    return [federation.sampler.select(round) for round in range(1, 11)]


def test_only_an_aggregator_that_hides_cohorts_draws_them_from_the_secret_seed() -> None:
    """Epsilon for a share q of the clients holds only if nobody can foresee the cohorts."""
    assert cohorts("private", Deployed()) != cohorts("private", SIMULATED)
    assert cohorts("uniform", Deployed()) == cohorts("uniform", SIMULATED)


@pytest.mark.parametrize(
    "words",
    [
        ["local.steps=10"],
        ["local.epochs=0.1"],
        ["local.epochs=2", "local.last_batch=drop"],
        ["local.steps=7", "personalization=fedrep"],
    ],
    ids=" ".join,
)
def test_the_expected_seconds_are_those_of_the_turn_s_batches(words: list[str]) -> None:
    small = ["clients.count=6", "clients.per_round=3", "data.subset=300"]
    planned = plan(compose("system=lognormal", *small, *words))
    data = load_data(planned.config, planned.source, torch.device("cpu"))
    setting, resources = assemble(planned, cpu_fabric(), data, None, SIMULATED)
    clients, schedule = np.arange(6), Schedule(resources)
    samples = np.array([schedule.samples(client, 1) for client in clients])
    sent = np.full(6, count_bytes(resources.split(resources.initial)[0]))
    assert setting.clients.turn_seconds is not None
    assert planned.system.devices is not None
    np.testing.assert_allclose(
        setting.clients.turn_seconds(clients),
        planned.system.devices.seconds(clients, samples, sent, sent),
    )
    assert len(set(data.sizes.tolist())) > 3
