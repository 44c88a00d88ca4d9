"""Local training: no weights are exchanged."""

from fedexp.config.compatibility.traits import PRIVATE_BACKBONE
from fedexp.core.sockets import Personalization


class Local(Personalization):
    """No weight is sent: each client trains its own model, from the same initial weights.

    Other parts still send their extras, such as the prototypes of ``head=prototype``.
    """

    has_global = False
    traits = frozenset({PRIVATE_BACKBONE})

    def shared(self, name: str) -> bool:
        """Always false, because no weight is shared."""
        return False
