"""FedPer: a shared body, a private head for each client."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from fedexp.compatibility.traits import FIXED_HEAD
from fedexp.core.sockets import Personalization

GlobalModel = Literal["none", "initial_head"]


class FedPer(Personalization):
    """The head is private, body and head are trained together (Arivazhagan et al., 2019).

    What a head receives in messages, such as FedNH's prototypes, still comes from the server.

    Args:
        global_model: "none" evaluates no global model; "initial_head" evaluates the averaged body
            with the head that all clients started from (as FedNH's tables do, AAAI 2023).
    """

    forbids = MappingProxyType(
        {
            FIXED_HEAD: "{other}: has nothing to train that could stay with clients; with this "
            "personalization should be linear or cosine"
        }
    )

    def __init__(self, global_model: GlobalModel) -> None:
        super().__init__()
        self.has_global = global_model == "initial_head"

    def shared(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith("head.")
