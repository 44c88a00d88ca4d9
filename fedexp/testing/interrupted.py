"""Serial training in which another client begins between a client's ``begin`` and its training.

This imitates ``engine=vectorized``, which calls ``begin`` for all clients of a stack before any of
them trains.
"""

from collections.abc import Callable

import torch

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message
from fedexp.engines.base import Engine
from fedexp.engines.serial import Serial
from fedexp.engines.stack import Stack
from fedexp.engines.stacking_errors import Attributes
from fedexp.state.client_state import ClientState
from fedexp.testing.federations import sent


class Interrupted(Serial):
    """Trains one client after another, but calls ``begin`` of another client before each training.

    After that call, the parameters and buffers of the client to train are restored. Nothing else is
    restored, because a stack stores nothing else for a client.
    """

    def begin(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Begin this client, begin another client, and restore the parameters and buffers."""
        return self._interrupted(super().begin, client, message, state)

    def begin_personal(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Like ``begin``, but for the client's personal model, which is trained separately."""
        return self._interrupted(super().begin_personal, client, message, state)

    def _interrupted(
        self,
        begin: Callable[[int, Message, ClientState], ClientModule],
        client: int,
        message: Message,
        state: ClientState,
    ) -> ClientModule:
        attributes = Attributes(self._components, self.resources.module.device)
        module = begin(client, message, state)
        attributes.compare()
        row = Stack(module, 1)
        row.save_row(0)
        with torch.random.fork_rng(devices=()):
            begin(other_client(self, client), message, sent(state))
            attributes.compare()
            attributes.check()
        row.load_row(0)
        return module


def other_client(engine: Engine, client: int) -> int:
    """A different client that has data, if possible with a different number of samples."""
    sizes = engine.resources.data.sizes.tolist()
    others = [c for c, size in enumerate(sizes) if size and c != client]
    return next((c for c in others if sizes[c] != sizes[client]), others[0])
