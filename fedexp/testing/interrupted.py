"""Serial training in which another client begins between a client's ``begin`` and its training.

It imitates a stack of ``engine=vectorized``, in which all clients begin before any of them trains.
"""

from collections.abc import Callable

import torch

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message
from fedexp.engines.base import Engine
from fedexp.engines.serial import Serial
from fedexp.engines.stack import Stack
from fedexp.state.client_state import ClientState
from fedexp.testing.federations import sent


class Interrupted(Serial):
    """Trains one client after another, but begins some other client just before each training.

    Then it restores the parameters and buffers of the client to train, because a stack stores
    nothing else of a client.
    """

    def begin(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Begin this client, begin another client, and restore the tensors that a stack keeps."""
        return self._interrupted(super().begin, client, message, state)

    def begin_personal(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Like ``begin``, for the separate personal model of the client."""
        return self._interrupted(super().begin_personal, client, message, state)

    def _interrupted(
        self,
        begin: Callable[[int, Message, ClientState], ClientModule],
        client: int,
        message: Message,
        state: ClientState,
    ) -> ClientModule:
        module = begin(client, message, state)
        row = Stack(module, 1)
        row.save_row(0)
        with torch.random.fork_rng(devices=()):
            begin(other_client(self, client), message, sent(state))
        row.load_row(0)
        return module


def other_client(engine: Engine, client: int) -> int:
    """Another client with data, if possible with another number of samples."""
    sizes = engine.resources.data.sizes.tolist()
    others = [c for c, size in enumerate(sizes) if size and c != client]
    return next((c for c in others if sizes[c] != sizes[client]), others[0])
