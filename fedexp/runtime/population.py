"""The clients of a run as the program reaches them: in its processes, or elsewhere."""

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
        """Read the clients' data that this machine has. Raises InputError."""
        return load_data(config, source, device)

    def known(self, setting: Setting) -> Setting:
        """Complete the setting with facts about all clients that are known on this machine."""
        return setting

    def engine(self, resources: Resources, make: Callable[[Resources], Engine]) -> Engine:
        """The engine that trains the clients; ``make`` makes the configured engine."""
        return make(resources)

    def scoring(self, engine: Engine) -> Scoring:
        """Make the object that scores the global model and personal models."""
        return Scoring(engine)


SIMULATED = Population()
"""The population of a simulation: all clients are in the processes of the run."""
