"""The messages, bytes and seconds of one round."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.core.reducible import Contribution


@dataclass(frozen=True)
class Receipt:
    """An accepted update without its tensors.

    Attributes:
        client: the client that sent it.
        num_samples: n_k, the number of the client's training samples.
        steps: gradient steps of the client's local training.
        upload_bytes: bytes of the update's tensors.
        metrics: the update's metrics, for example ``loss``.
    """

    client: int
    num_samples: int
    steps: int
    upload_bytes: int
    metrics: Mapping[str, float]


def receipt(update: Update) -> Receipt:
    """The update without its tensors."""
    metrics = dict(update.metrics)
    return Receipt(update.client, update.num_samples, update.steps, update.nbytes, metrics)


class Exchange:
    """Counts one round's messages and times its steps.

    Args:
        message: the message to the clients of the round.

    Attributes:
        cohort: the chosen clients in the sampler's order, including clients that dropped out.
        receivers: the clients that get the message: the cohort, and clients that the sampler asked.
        download_bytes: bytes that the receivers download together.
        upload_bytes: bytes of all answers and updates, including refused updates.
        receipts: the accepted updates, without their tensors.
        seconds: step -> seconds: ``select``, ``train`` and, if the sampler asked clients,
            ``probe``; after the end of the round also ``server``, the remaining time.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.cohort: Sequence[int] = ()
        self.download_bytes = 0
        self.upload_bytes = 0
        self.receipts: list[Receipt] = []
        self.seconds = {"select": 0.0, "train": 0.0}
        self.receivers: set[int] = set()
        self._answered_bytes = 0
        self._start = self._reduced_at = time.perf_counter()

    def count_answers(self, answers: Iterable[tuple[int, Tensors]]) -> dict[int, Tensors]:
        """Client -> answer to the sampler; counts a message to each client that answers."""
        start = time.perf_counter()
        received = dict(answers)
        if received:
            self.seconds["probe"] = time.perf_counter() - start
        self.receivers = set(received)
        self._answered_bytes = sum(map(count_bytes, received.values()))
        return received

    def count_cohort(self, cohort: Sequence[int]) -> Sequence[int]:
        """Return the cohort; the time so far, except the time for answers, counts as selection."""
        elapsed = time.perf_counter() - self._start
        self.seconds["select"] = elapsed - self.seconds.get("probe", 0.0)
        self.cohort = cohort
        self.receivers |= set(cohort)
        self.download_bytes = self.message.bytes_to(self.receivers)
        return cohort

    def count_arrivals(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Pass on the updates; the time of waiting for them counts as training."""
        asked = time.perf_counter()
        for update in updates:
            self.seconds["train"] += time.perf_counter() - asked
            self.upload_bytes += update.nbytes
            yield update
            asked = time.perf_counter()

    def observe(self, update: Update) -> None:
        """Note an accepted update."""
        self.receipts.append(receipt(update))

    def contribution(self) -> Contribution:
        """This process's upload bytes and the receipts of its accepted updates.

        The time from here to ``set_reduced`` counts as training.
        """
        self._reduced_at = time.perf_counter()
        return Contribution(items=(self.upload_bytes, self.receipts))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's upload bytes and receipts by the totals of all processes.

        The time of waiting for the other processes is added to ``seconds["train"]``.
        """
        self.seconds["train"] += time.perf_counter() - self._reduced_at
        uploads, accepted = zip(*items, strict=True)
        self.upload_bytes, self.receipts = sum(uploads), list(chain(*accepted))

    def end(self) -> None:
        """End the round; all time that is not counted yet counts as time of the server."""
        self.upload_bytes += self._answered_bytes
        elapsed = time.perf_counter() - self._start
        self.seconds["server"] = elapsed - sum(self.seconds.values())
