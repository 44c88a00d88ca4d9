"""Local training: no weights are exchanged."""

from fedexp.compatibility.traits import PRIVATE_BACKBONE
from fedexp.core.sockets import Personalization


class Local(Personalization):
    """No weight is sent: in each of its rounds a client continues to train its own model.

    All start from the same initial weights. What other parts exchange beside the weights, such as
    the prototypes of ``head=prototype``, is still exchanged.
    """

    has_global = False
    traits = frozenset({PRIVATE_BACKBONE})

    def shared(self, name: str) -> bool:
        """Nothing."""
        return False
