"""FedPer: a shared body, and a private head for each client."""

from typing import Literal

from fedexp.config.compatibility.declaration import needs_trained_head
from fedexp.core.sockets import Personalization

GlobalModel = Literal["none", "initial_head"]


class FedPer(Personalization):
    """The head is private; body (backbone) and head train together (Arivazhagan et al., 2019).

    The server still sends the head's extras, such as FedNH's prototypes.

    Args:
        global_model: with "none" no global model is evaluated. With "initial_head" the averaged
            body with the initial head is evaluated, as in FedNH's tables (AAAI 2023). The initial
            head is the same for all clients.
    """

    private_names: tuple[str, ...] = ("head.",)
    forbids = needs_trained_head("trains nothing that could stay with the clients")

    def __init__(self, global_model: GlobalModel) -> None:
        super().__init__()
        self.has_global = global_model == "initial_head"
