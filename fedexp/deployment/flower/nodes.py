"""The nodes of a federation: which node has which client, and the nodes' answers."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedexp.deployment.flower.letters import Answer, Introduction, Letter, RefusedError, pack, read
from fedexp.deployment.flower.post import Post
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

_INTRODUCTION_S = 120.0
"""Seconds to wait for the introduction of a new node; a silent node is asked again later."""

_LOOK_S = 2.0
"""Seconds between two searches for new nodes."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits.

    Attributes:
        min_clients: a round starts when this many clients of its cohort have a node. A smaller
            cohort needs a node for every client.
        wait_minutes: longest wait until enough clients have a node.
        reply_minutes: longest wait for the nodes' replies after requests are sent, such as a
            round's messages. A client without a reply counts as dropped out.
    """

    min_clients: int
    wait_minutes: float
    reply_minutes: float


class Nodes:
    """Finds the node of each client and asks clients by their numbers.

    A new node says which client it has. If two nodes have the same client, the later node replaces
    the earlier node, because a restarted node may get a new number.

    Args:
        post: sends messages to nodes.
        app: ``App.version`` of the server.
        dataset: the digest of the dataset's names and shapes that every node must have.
        patience: how long to wait.
        sizes: client -> number of its training samples, for clients known before a restart.
        lost: the rounds before a restart that lost nodes have changed.

    Attributes:
        round: the number of the current round; 0 before the first.
        lost: the rounds that a missing or refused reply, or a lost state, has changed.
        save_lost: called when ``lost`` has changed.
        class_counts: [N, C] training samples of each class at each client; None until they are
            asked for.
    """

    def __init__(
        self,
        post: Post,
        app: str,
        dataset: str,
        patience: Patience,
        sizes: Mapping[int, int],
        lost: Iterable[int],
    ) -> None:
        self._post, self._app, self._dataset, self._patience = post, app, dataset, patience
        self._sizes = dict(sizes)
        self._node_of: dict[int, int] = {}
        self._met: set[int] = set()
        self.class_counts: Tensor | None = None
        self.round, self.lost = 0, set(lost)
        self.save_lost: Callable[[], None] = lambda: None

    def begin_round(self, round: int) -> None:
        """Start a round, or repeat one; losses of an earlier try no longer count."""
        is_new, self.round = round != self.round, round
        if is_new and round in self.lost:
            self.lost.remove(round)
            self.save_lost()

    @property
    def sizes(self) -> Tensor:
        """[N] int64: the number of training samples of each client; call ``meet`` first."""
        return torch.tensor([self._sizes[client] for client in sorted(self._sizes)])

    def meet(self, count: int) -> None:
        """Wait until each of the ``count`` clients has said how many samples it has."""
        self._count = count
        self._wait(lambda: [k for k in range(count) if k not in self._sizes], 0, "the first round")

    def ask_class_counts(self) -> Tensor:
        """[N, C] training samples of each class at each client; the first call asks all nodes.

        Raises InputError if a client has no node, or does not answer with valid counts.
        """
        if self.class_counts is None:
            clients = range(self._count)
            self._wait(lambda: self._without_node(clients), 0, "class counts")
            found = {}
            requests = dict.fromkeys(clients)
            for client, answer in self.ask(requests, "query.classes", "class counts", Answer):
                counts = answer.tensors.get("counts", torch.zeros(0))
                if self._fits(client, counts):
                    found[client] = counts
            if missing := [client for client in clients if client not in found]:
                raise InputError(f"client {missing[0]}: did not say its class counts; start again")
            if len({len(counts) for counts in found.values()}) > 1:
                raise InputError("class counts: the clients have different numbers of classes")
            self.class_counts = torch.stack([found[client] for client in clients])
        return self.class_counts

    def _fits(self, client: int, counts: Tensor) -> bool:
        """Whether these are class counts [C] whose sum is the client's number of samples."""
        whole = counts.dim() == 1 and not counts.is_floating_point() and bool((counts >= 0).all())
        return whole and int(counts.sum()) == self._sizes[client]

    def gather(self, clients: Sequence[int], purpose: str) -> None:
        """Wait until ``min_clients`` of the clients, or all, have a node. Raises InputError."""
        needed = min(self._patience.min_clients, len(clients))
        self._wait(lambda: self._without_node(clients), len(clients) - needed, purpose)

    def ask(
        self,
        requests: Mapping[int, object],
        kind: str,
        purpose: str,
        answer: type[Letter],
        left_out: str = "",
    ) -> Iterator[tuple[int, Letter]]:
        """Send each client its request, and yield (client, answer) in the order of ``requests``.

        With this order, results do not depend on which node is the fastest. A client without a
        node, without a reply or with a refused reply is left out, with a warning.

        Args:
            requests: client -> the letter to it; None: a message without content.
            kind: the type of the messages, see ``Post.exchange``.
            purpose: names the exchange in warnings.
            answer: the letter that each client replies.
            left_out: ends the warning of a refused reply.
        """
        missing = set(self._without_node(list(requests)))
        for client in sorted(missing):
            LOGGER.warning("%s: client %d has no node; it counts as dropped out", purpose, client)
            self._count_loss()
        awaited = [k for k in requests if k not in missing]
        sent = {self._node_of[k]: pack(self._app, requests[k]) for k in awaited}
        client_of = {node: k for k, node in self._node_of.items()}
        held: dict[int, RecordDict | None] = {}
        for node, reply in self._post.exchange(sent, kind, 60 * self._patience.reply_minutes):
            if isinstance(reply, str):
                self.warn(purpose, client_of[node], f"{reply}; it counts as dropped out")
            held[client_of[node]] = None if isinstance(reply, str) else reply
            while awaited and awaited[0] in held:
                client = awaited.pop(0)
                if (content := held.pop(client)) is None:
                    continue
                try:
                    letter = read(content, self._app, answer)
                except RefusedError as error:
                    self.warn(purpose, client, f"{error}{left_out}")
                    continue
                yield client, letter

    def warn(self, purpose: str, client: int, what: str) -> None:
        """Log a warning that names the client and its node; the round counts as changed."""
        LOGGER.warning("%s: client %d (node %d) %s", purpose, client, self._node_of[client], what)
        self._count_loss()

    def _count_loss(self) -> None:
        if self.round and self.round not in self.lost:
            self.lost.add(self.round)
            self.save_lost()

    def _wait(self, missing: Callable[[], list[int]], may_miss: int, purpose: str) -> None:
        """Wait until ``missing()`` lists at most ``may_miss`` clients. Raises InputError."""
        end, said = time.monotonic() + 60 * self._patience.wait_minutes, list[int]()
        self._meet_new()
        while len(found := missing()) > may_miss:
            who = f"client{'s' * (len(found) > 1)} {', '.join(map(str, found[:10]))}"
            if time.monotonic() >= end:
                raise InputError(
                    f"wait-minutes={self._patience.wait_minutes:g}: {purpose} lacks {who}; start "
                    "their nodes, then go on with resume=true"
                )
            if found != said:
                LOGGER.info("%s waits for %s", purpose, who)
                said = found
            time.sleep(_LOOK_S)
            self._meet_new()

    def _without_node(self, clients: Sequence[int]) -> list[int]:
        here = self._meet_new()
        return [k for k in dict.fromkeys(clients) if self._node_of.get(k) not in here]

    def _meet_new(self) -> set[int]:
        """Ask new nodes which client they have; return all connected nodes."""
        here = set(self._post.nodes())
        asked = dict.fromkeys(sorted(here - self._met), pack(self._app))
        for node, reply in self._post.exchange(asked, "query.introduce", _INTRODUCTION_S):
            problem = reply
            if not isinstance(reply, str):
                self._met.add(node)
                problem = self._admit(node, reply)
            if problem:
                LOGGER.warning("node %d %s", node, problem)
        return here

    def _admit(self, node: int, content: RecordDict) -> str:
        """Record which client the node has; return the reason if the node is refused, else ''."""
        try:
            about = read(content, self._app, Introduction)
        except RefusedError as error:
            return f"{error}; it takes no part"
        if reason := self._misfit(about):
            return f"{reason}; it takes no part"
        self._sizes[about.client] = about.samples
        self._node_of[about.client] = node
        LOGGER.info("client %d is on node %d", about.client, node)
        return ""

    def _misfit(self, about: Introduction) -> str:
        if not 0 <= about.client < self._count:
            return f"has client {about.client}, but clients.count={self._count}"
        if about.dataset != self._dataset:
            return f"client {about.client} has a dataset of other classes, inputs or shapes"
        known = self._sizes.get(about.client, about.samples)
        if about.samples != known:
            return f"client {about.client} has {about.samples} samples now, it had {known}"
        return ""
