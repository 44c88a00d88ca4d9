"""FedPer: a common body, a head for each client."""

from __future__ import annotations

from typing import ClassVar

from fedexp.core.sockets import Head, Loss, Personalization
from fedexp.errors import InputError


class FedPer(Personalization):
    """The head stays with its client, both are trained at once (Arivazhagan et al., 2019).

    What a head derives from messages, such as FedNH's prototypes, is the server's as ever.
    """

    has_global: ClassVar[bool] = False

    def check(self, head: Head, loss: Loss) -> None:
        """Raises InputError if the head has nothing that trains."""
        if not any(parameter.requires_grad for parameter in head.parameters()):
            raise InputError(
                f"head={type(head).__name__.lower()}: has nothing to train that could stay with "
                "clients; with this personalization should be linear or cosine"
            )

    def shared(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith("head.")
