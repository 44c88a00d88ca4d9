"""Which parts can be combined: each declares traits, and which traits it needs and forbids.

A trait is any string. Those below are declared by fedexp's own parts; your parts may declare and
require others. ``Part`` has the four attributes that are read here.
"""

from collections.abc import Mapping
from logging import Logger
from typing import Protocol

from fedexp.errors import InputError

CLASS_PROTOTYPES = "sends class prototypes"
DRAWS_BY_SIZE = "draws clients with odds proportional to their samples"
DRAWS_REPEATEDLY = "can draw a client several times a round"
KEEPS_MOMENTUM = "keeps the local optimizer's momentum over rounds"
LEAVES_OUT_CLASSES = "gives the classes that a client lacks the logit -inf"
NOT_THE_MEAN = "puts the global model elsewhere than at the cohort's mean"
PRIVATE_BACKBONE = "shares no weight of the backbone"
RUNNING_STATISTICS = "normalises features with running statistics in the head"
SECOND_DERIVATIVES = "takes second derivatives of the model"
UNIFORM_COHORTS = "draws cohorts uniformly, whatever is known of the clients"
UNTRAINED_CLASSIFIER = "scores the global model with a classifier that no client trains"


class Declares(Protocol):
    """The attributes of a component that are checked.

    Attributes:
        traits: properties of it that others may need or forbid.
        needs: trait -> the error if no other component has it.
        forbids: trait -> the error if another component has it; ``{socket}`` in it stands for
            the socket of the first that has it.
        discourages: trait -> the warning if another component has it.
    """

    @property
    def traits(self) -> frozenset[str]: ...  # noqa: D102

    @property
    def needs(self) -> Mapping[str, str]: ...  # noqa: D102

    @property
    def forbids(self) -> Mapping[str, str]: ...  # noqa: D102

    @property
    def discourages(self) -> Mapping[str, str]: ...  # noqa: D102


def check_compatible(components: Mapping[str, Declares], logger: Logger) -> None:
    """Raise InputError for the first conflict; warn of discouraged combinations.

    Args:
        components: socket -> part, and other settings that declare traits.
        logger: gets the warnings.
    """
    for name, component in components.items():
        others = {socket: each for socket, each in components.items() if socket != name}
        for trait, message in component.needs.items():
            if not _sockets_with(trait, others):
                raise InputError(message)
        for trait, message in component.forbids.items():
            if having := _sockets_with(trait, others):
                raise InputError(message.format(socket=having[0]))
        for trait, message in component.discourages.items():
            if _sockets_with(trait, others):
                logger.warning(message)


def _sockets_with(trait: str, components: Mapping[str, Declares]) -> list[str]:
    return [socket for socket, each in components.items() if trait in each.traits]
