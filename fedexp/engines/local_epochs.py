"""How long a client trains in a round: ``local.epochs`` or ``local.steps``."""

from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import ClientData
from fedexp.engines.resources import Resources


def local_epochs(resources: Resources, data: ClientData, round: int) -> float:
    """The client's number of epochs in this round, for ``Personalization.phases``.

    If ``local.epochs`` is a range, the number is a uniform draw from the whole numbers in the
    range, both ends included. The draw depends on seed, round and client. With ``local.steps`` the
    number is the client's steps in this round divided by its steps in one epoch.
    """
    local = resources.local
    if local.steps is not None:
        return data.steps(local.steps) / len(resources.local_batches(data, round))
    if isinstance(local.epochs, list):
        least, most = local.epochs
        generator = numpy_generator(data.population.seed, "local_epochs", round, data.client)
        return int(generator.integers(least, most, endpoint=True))
    return local.epochs
