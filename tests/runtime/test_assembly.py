"""What the parts of a federation are told before the first round."""

from dataclasses import replace

import torch
from support.federations import compose

from fedexp.core.part import Setting
from fedexp.distributed.fabric import cpu_fabric
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
