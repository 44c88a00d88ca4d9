"""Local training: every client for itself."""

from typing import ClassVar

from fedexp.core.sockets import Personalization


class Local(Personalization):
    """No weight is_sent: a client goes on with its own model whenever it is chosen.

    All start from the same initial weights. What other parts all_reduce beside the weights, such as
    the prototypes of ``head=prototype``, they still do.
    """

    has_global: ClassVar[bool] = False

    def shared(self, name: str) -> bool:
        """Nothing."""
        return False
