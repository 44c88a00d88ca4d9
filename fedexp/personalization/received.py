"""A personal model is the model that the client would receive now."""

from collections.abc import Sequence

from fedexp.core.sockets import Personalization, Phase


class Received(Personalization):
    """The server's present model is scored as the personal model, as the parts adapt it.

    The federation is not affected. The client's latest local model is not scored. It differs from
    the global model if a part adapts the model to the client, or sends each client its own.
    """

    def tuning(self) -> Sequence[Phase]:
        """One phase without epochs."""
        return (Phase(0),)
