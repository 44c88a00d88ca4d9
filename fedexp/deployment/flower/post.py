"""Messages to nodes and their replies, over Flower's grid."""

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_PULL_S = (0.05, 2.0)
"""Shortest and longest pause between two checks for new replies, in seconds."""


class Post:
    """Sends messages to nodes and yields their replies when they arrive.

    Args:
        grid: Flower's grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """The nodes that are connected."""
        return list(self._grid.get_node_ids())

    def exchange(
        self, requests: Mapping[int, RecordDict], kind: str, seconds: float
    ) -> Iterator[tuple[int, RecordDict | str]]:
        """Yield (node, reply) when a reply arrives; a reply is records, or a text about an error.

        Args:
            requests: node -> the content of the message to it.
            kind: the message's type: ``train``, ``evaluate``, ``query.NAME`` ...
            seconds: longest wait; a node that has not replied by then gets an error as its reply.
        """
        if not requests:
            return
        messages = [
            Message(content, node, kind, ttl=seconds + 60) for node, content in requests.items()
        ]
        ids = self._grid.push_messages(messages)
        open_ = {
            reply: node for reply, node in zip(ids, requests, strict=True) if reply is not None
        }
        for node in set(requests) - set(open_.values()):
            yield node, "could not be reached"
        yield from self._replies(open_, time.monotonic() + seconds)

    def _replies(self, open_: dict[str, int], end: float) -> Iterator[tuple[int, RecordDict | str]]:
        """Yield (node, reply) for the unanswered messages ``open_`` (message id -> node)."""
        pause, longest = _PULL_S
        while open_ and time.monotonic() < end:
            arrived = list(self._grid.pull_messages(list(open_)))
            for message in arrived:
                node = open_.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, _content(message)
            pause = _PULL_S[0] if arrived else min(1.5 * pause, longest)
            if open_ and not arrived:
                time.sleep(pause)
        for node in open_.values():
            yield node, "sent no reply in time"


def _content(message: Message) -> RecordDict | str:
    if message.has_content():
        return message.content
    lines = [line for line in (message.error.reason or "").splitlines() if line.strip()]
    return f"failed with code {message.error.code} ({lines[-1] if lines else 'no reason given'})"
