"""Counts the messages, bytes and seconds of one round."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.core.reducible import Contribution
from fedexp.system.round_time import RoundTime
from fedexp.system.turns import Outcome, TurnRecord


def receipt(update: Update) -> Update:
    """The update without its tensors; its ``nbytes`` stay."""
    return replace(update, weights={}, extras={}, directions={}, weights_nbytes=update.nbytes)


class Exchange:
    """Counts one round's messages and times its steps.

    Args:
        message: the message to the clients of the round.

    Attributes:
        cohort: the chosen clients in the sampler's order, including clients that dropped out.
        receipts: the accepted updates, without their tensors.
        seconds: step of the round -> seconds. The steps are ``select``, ``train``, ``probe`` if the
            sampler asked clients, and after the end of the round ``server``, the remaining time.
        time: the simulated time of the round; None without simulated time.
        coordination: metrics ``coordination/*``; empty in synchronous rounds.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.cohort: Sequence[int] = ()
        self.receipts: list[Update] = []
        self.seconds = {"select": 0.0, "train": 0.0}
        self.time: RoundTime | None = None
        self.coordination: Mapping[str, float] = {}
        self._answered: dict[int, int] = {}
        self._downloads: dict[int, int] = {}
        self._arrived: list[TurnRecord] = []
        self._started: list[TurnRecord] = []
        self._trains = False
        self._left_out: Sequence[TurnRecord] = ()
        self._start = self._reduced_at = self._waits_since = time.perf_counter()

    def count_answers(self, answers: Iterable[tuple[int, Tensors]]) -> dict[int, Tensors]:
        """Receive and return the answers to the sampler: client -> its answer.

        The messages that these clients have downloaded are counted later, by ``count_cohort``.
        """
        start = time.perf_counter()
        received = dict(answers)
        if received:
            self.seconds["probe"] = time.perf_counter() - start
        self._answered = {client: count_bytes(answer) for client, answer in received.items()}
        return received

    def count_cohort(self, cohort: Sequence[int]) -> Sequence[int]:
        """Add the chosen clients and their downloads, and return the chosen clients.

        The time so far, except the time for answers, counts as selection. If the server chooses
        further clients later in the round, or after an update has arrived, training has begun, so
        their selection counts as training.
        """
        if not self._trains:
            self._trains, self._waits_since = True, time.perf_counter()
            elapsed = self._waits_since - self._start
            self.seconds["select"] = elapsed - self.seconds.get("probe", 0.0)
        self.cohort = [*self.cohort, *cohort]
        self._downloads |= self.message.bytes_to_each(self._answered.keys() | set(cohort))
        return cohort

    def count_arrivals(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates that are not late; waiting for any update counts as training time."""
        self._waits_since = time.perf_counter()
        for update in updates:
            self._trains = True
            self.seconds["train"] += time.perf_counter() - self._waits_since
            upload = 0 if update.is_late else update.nbytes
            outcome: Outcome = "late" if update.is_late else "refused"
            counts = update.samples, update.steps, 0, upload
            self._arrived.append(TurnRecord(update.client, *counts, outcome))
            if not update.is_late:
                yield update
            self._waits_since = time.perf_counter()

    def count_start(self, client: int, drops_out: bool) -> TurnRecord:
        """Note and return the start of a client's turn; the update may arrive in a later round."""
        outcome: Outcome = "dropped" if drops_out else "started"
        turn = TurnRecord(client, 0, 0, self._downloads[client], 0, outcome)
        self._started.append(turn)
        return turn

    def observe(self, update: Update) -> None:
        """Note an accepted update."""
        self.receipts.append(receipt(update))

    def leave_out(self, turns: Sequence[TurnRecord]) -> None:
        """Note the turns (records of work) of cohort clients that were late or surplus."""
        self._left_out = turns

    @property
    def in_time(self) -> list[int]:
        """The cohort without the clients that were late or surplus."""
        left_out = {turn.client for turn in self.turns if turn.outcome in ("late", "surplus")}
        return [client for client in self.cohort if client not in left_out]

    @property
    def download_bytes(self) -> int:
        """Bytes downloaded by the cohort and by clients that answered the sampler."""
        return sum(self._downloads.values())

    @property
    def upload_bytes(self) -> int:
        """Bytes of the answers to the sampler, and of the updates that were not late.

        The bytes of a refused update count, too.
        """
        return sum(self._answered.values()) + sum(turn.upload_bytes for turn in self._arrived)

    @property
    def receivers(self) -> Collection[int]:
        """The clients that get the message: the cohort, and clients that answered the sampler."""
        return self._downloads.keys()

    @property
    def downloads_left(self) -> dict[int, int]:
        """Client of the cohort -> bytes to download; 0 if it has already answered the sampler."""
        return {c: 0 if c in self._answered else self._downloads[c] for c in self.cohort}

    @cached_property
    def turns(self) -> list[TurnRecord]:
        """Records of the clients' work: first the answers to the sampler, then the cohort's turns.

        If updates may arrive in a later round, the starts of turns come before the arrivals. The
        first use makes the list, and it never changes afterwards: use it only when the updates of
        all processes are in. The records' bytes add up to ``download_bytes`` and to
        ``upload_bytes``.
        """
        accepted = {each.client for each in self.receipts}
        ended = {turn.client: turn for turn in (*self._left_out, *self._arrived)}
        started = {turn.client: turn for turn in self._started}
        downloads = self.downloads_left
        turns = [
            TurnRecord(client, 0, 0, self._downloads[client], upload, "asked")
            for client, upload in sorted(self._answered.items())
        ]
        for client in dict.fromkeys(self.cohort):
            if client in started:
                turns.append(started[client])
                continue
            turn = ended.get(client) or TurnRecord(client, 0, 0, 0, 0, "dropped")
            outcome = "sent" if client in accepted else turn.outcome
            turns.append(replace(turn, download_bytes=downloads[client], outcome=outcome))
        later = [t for t in self._arrived if t.client in started or t.client not in self.cohort]
        return turns + [
            replace(turn, outcome="buffered") if turn.client in accepted else turn for turn in later
        ]

    def contribution(self) -> Contribution:
        """The turns whose updates arrived at this process, and the receipts of accepted updates.

        The time from here to ``set_reduced`` counts as training.
        """
        self._reduced_at = time.perf_counter()
        return Contribution(items=(self._arrived, self.receipts))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's turns and receipts by the turns and receipts of all processes.

        The time of waiting for the other processes is added to ``seconds["train"]``.
        """
        self.seconds["train"] += time.perf_counter() - self._reduced_at
        arrived, accepted = zip(*items, strict=True)
        self._arrived, self.receipts = list(chain(*arrived)), list(chain(*accepted))

    def end(self) -> None:
        """End the round; time that no other step has counted is counted as ``server``."""
        elapsed = time.perf_counter() - self._start
        self.seconds["server"] = elapsed - sum(self.seconds.values())
