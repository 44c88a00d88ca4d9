"""A federation on Flower in one process: a grid whose nodes answer at once."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedexp.cli.flower import main
from fedexp.deployment.flower.app import App, read_app
from fedexp.deployment.flower.client import client_app
from fedexp.deployment.flower.letters import pack, read
from fedexp.deployment.flower.server import serve
from fedexp.distributed.wire import decode
from fedexp.runtime.result import RunResult

DIGITS = [
    *["rounds=3", "clients.count=4", "clients.per_round=3", "local.epochs=1", "data.subset=300"],
    *["checkpoint.every=1", "tracking.wandb.mode=disabled", "tracking.progress=false"],
    *["engine.threads=1", "engine.device=cpu", "seed=3", "measure.prototypes=null"],
    "measure.partition=null",
]
"""A run on digits that takes seconds."""

FAST = {
    "fedptr": ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"],
}
"""Preset -> overrides that shorten its work."""

RUN_CONFIG = {
    "folder": "",
    "resume": False,
    "data-root": "",
    "min-clients": 1,
    "wait-minutes": 0.001,
    "reply-minutes": 0.02,
}


def bundle(folder: Path, *overrides: str) -> Path:
    """Write an app; returns its module folder."""
    main([str(folder / "app"), *DIGITS, *overrides])
    return folder / "app" / "fedexp_app"


class FakeGrid:
    """Nodes 100, 101, ... hold clients 0, 1, ...; every message is encoded to bytes and back.

    Args:
        module: the app's module folder.
        states: the folder of the nodes' states.
        clients: the clients that have a node.
        key: the key of the node's config that has its client.

    Attributes:
        sent: number of bytes sent to nodes, by type of message.
        received: number of bytes of replies, by type of message.
        answering: the module folder of the nodes' app, if it is another one.
        log: (type of message, client) of all messages, in order.
        lose: (type, round, client) -> whether the node gets the message and its reply is lost.
        absent: (type, round, client) -> whether the node is gone before it gets the message.
        change: (type, round, client, reply) -> the reply that the server gets.
        own: client -> further settings of its node.
    """

    def __init__(
        self,
        module: Path,
        states: Path,
        clients: Sequence[int] = range(4),
        key: str = "partition-id",
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.module, self.states, self.key = module, states, key
        self.answering = module
        self.nodes = {100 + client: client for client in clients}
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.log: list[tuple[str, int]] = []
        self.lose: Callable[[str, int, int], bool] = lambda kind, round, client: False
        self.absent: Callable[[str, int, int], bool] = lambda kind, round, client: False
        self.change: Callable[[str, int, int, RecordDict], RecordDict] = (
            lambda kind, round, client, reply: reply
        )
        self.own: dict[int, dict[str, str]] = {}
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            name = f"message {len(self.log)}"
            message.metadata.__dict__["_message_id"] = name
            client = self.nodes[message.metadata.dst_node_id]
            kind = message.metadata.message_type
            self.log.append((kind, client))
            ids.append(name)
            if (reply := self._answer(kind, client, message)) is not None:
                self._replies[name] = reply
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(name) for name in list(ids) if name in self._replies]
        random.Random(len(self.log)).shuffle(found)
        return found

    def _answer(self, kind: str, client: int, message: Message) -> Message | None:
        arrived = self._transmit(message, self.sent)
        round = round_of(arrived.content)
        if self.absent(kind, round, client):
            return Message(Error(5, "the node is not available"), reply_to=message)
        state = str(self.states / f"node_{client}")
        config: dict[str, bool | float | int | str] = {self.key: client, "state": state}
        config |= self.own.get(client, {})
        context = Context(1, 100 + client, config, RecordDict(), {})
        reply = client_app(self.answering)(arrived, context)
        content = self.change(kind, round, client, reply.content)
        reply = self._transmit(Message(content, reply_to=message), self.received)
        return None if self.lose(kind, round, client) else reply

    def _transmit(self, message: Message, counts: dict[str, int]) -> Message:
        content = message_to_proto(message).SerializeToString()
        kind = message.metadata.message_type
        counts[kind] = counts.get(kind, 0) + len(content)
        return message_from_proto(ProtoMessage.FromString(content))


def round_of(content: RecordDict) -> int:
    """The round that a request names; 0 if it names none."""
    if "content" not in content.array_records:
        return 0
    raw = bytearray(content.array_records["content"]["content"].data)
    return int(decode(torch.frombuffer(raw, dtype=torch.uint8), torch.device("cpu"))["round"])


def changed(reply: RecordDict, kind: type, **values: object) -> RecordDict:
    """A reply of this kind with other values; a value may be a function of the old one."""
    app = str(reply.config_records["head"]["app"])
    letter: Any = read(reply, app, kind)
    new = {n: v(getattr(letter, n)) if callable(v) else v for n, v in values.items()}
    return pack(app, replace(letter, **new))


def run(grid: FakeGrid, folder: Path, **run_config: object) -> RunResult:
    """Run the grid's app; the run's folder is below ``folder``."""
    app: App = read_app(grid.module)
    return serve(app, cast(Grid, grid), RUN_CONFIG | {"folder": str(folder)} | run_config)
