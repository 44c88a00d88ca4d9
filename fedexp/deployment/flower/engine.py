"""The engine of a server whose clients are on nodes."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from fedexp.core.messages import Message, Tensors, Update
from fedexp.deployment.flower.letters import Answer, RefusedError, Request, Turn, read_update
from fedexp.deployment.flower.nodes import Nodes
from fedexp.engines.base import Engine
from fedexp.engines.resources import Resources

_MEMORY = "last received"
"""Name of the memory that holds the last round whose update the server received from a client."""


class NodesEngine(Engine):
    """Trains clients on their nodes: sends each node the round's message, and reads its reply.

    Args:
        resources: the store in it keeps the last round whose update came in, for each client.
        nodes: reaches the nodes.
        run: the name of the run.
        oldest_checkpoint: round -> the round of the oldest checkpoint before it.
        forgets: whether personal models are kept only until the next round.

    Attributes:
        nodes: the argument.
    """

    def __init__(
        self,
        resources: Resources,
        nodes: Nodes,
        run: str,
        oldest_checkpoint: Callable[[int], int],
        forgets: bool,
    ) -> None:
        super().__init__(resources)
        self.nodes, self._run = nodes, run
        self._oldest_checkpoint, self._forgets = oldest_checkpoint, forgets

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Yield the updates in the cohort's order.

        A client is left out, with a warning, if it does not answer or its reply is refused.
        """
        self.nodes.begin_round(message.round)
        draws = Counter(cohort)
        purpose = f"round {message.round}"
        self.nodes.gather(list(draws), purpose)
        requests = {k: self.request(k, message) for k in draws}
        left_out = "; its update is left out"
        for client, turn in self.nodes.ask(requests, "train", purpose, Turn, left_out):
            samples = int(self.resources.data.sizes[client])
            try:
                update = read_update(turn, client, samples, draws[client], message)
            except RefusedError as error:
                self.nodes.warn(purpose, client, f"{error}{left_out}")
                continue
            if turn.lost_state:
                self.nodes.warn(purpose, client, "lost its state and went on from an empty one")
            if update.is_finite:  # otherwise the client goes on from its state before this round
                with self.resources.store.open(client) as state:
                    state.memory(_MEMORY)["round"] = torch.tensor(message.round)
            yield update

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """Yield (client, its answer to the sampler); a client without a valid reply is left out."""
        self.nodes.begin_round(message.round)
        purpose = f"the sampler's question in round {message.round}"
        self.nodes.gather(clients, purpose)
        requests = {k: self.request(k, message) for k in clients}
        left_out = "; its answer is left out"
        for client, answer in self.nodes.ask(requests, "query.probe", purpose, Answer, left_out):
            yield client, answer.tensors

    def request(self, client: int, message: Message, addressed: bool = True) -> Request:
        """Make the request to the client.

        If ``addressed``, it has ``message.to_client(client)``; otherwise it has ``message``.
        """
        sent = message.to_client(client) if addressed else message
        return Request(
            self._run,
            sent.round,
            sent.weights,
            sent.extras,
            self._last_received(client),
            self._oldest_checkpoint(message.round),
            self.nodes.sizes,
            self.nodes.class_counts,
        )

    def clients_with_model(self) -> list[int]:
        """The clients to ask for the score of their personal model after the latest round."""
        trained = self.resources.store.clients_with_state
        if not self._forgets:
            return trained
        return [client for client in trained if self._last_received(client) == self.nodes.round]

    def _last_received(self, client: int) -> int:
        return int(self.resources.store.memory(client, _MEMORY).get("round", torch.tensor(0)))
