"""The personal model is the model that a client would receive now, not its latest local model."""

from collections.abc import Sequence

from fedexp.core.sockets import Personalization, Phase


class Received(Personalization):
    """The personal model is the server's current model, after the parts adapt it to the client.

    This has no effect on training. The client's latest local model is not evaluated. The personal
    model differs from the global model if a part adapts the model to the client, or sends a
    different model to each client.
    """

    def tuning(self) -> Sequence[Phase]:
        """One phase without epochs: the received model is evaluated without training."""
        return (Phase(0),)
