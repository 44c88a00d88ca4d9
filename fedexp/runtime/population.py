"""Where the clients of a run are."""

from collections.abc import Callable

import torch

from fedexp.config.schema import Config
from fedexp.core.part import Setting
from fedexp.data.dataset import Describer
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.engines.base import Engine
from fedexp.engines.resources import Resources
from fedexp.measures.scoring.scoring import Scoring


class Population:
    """The clients of a run; the base class simulates all of them in the processes of the run.

    A subclass reaches clients elsewhere, such as on other machines.
    """

    def load(self, config: Config, source: Describer, device: torch.device) -> FederatedData:
        """The population's data, as far as it is here. Raises InputError."""
        return load_data(config, source, device)

    def known(self, setting: Setting) -> Setting:
        """The setting with the facts that are known here."""
        return setting

    def engine(self, resources: Resources, make: Callable[[Resources], Engine]) -> Engine:
        """The engine that trains the clients; ``make`` makes the configured engine."""
        return make(resources)

    def scoring(self, engine: Engine) -> Scoring:
        """Scores the global model and personal models."""
        return Scoring(engine)


SIMULATED = Population()
"""A simulation, in which all clients are here."""
