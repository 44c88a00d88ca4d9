"""One round's traffic, times, and what the clients report of their training."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import fsum
from typing import Any

from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.distributed.ranks import Contribution


class Meter:
    """Counts what passes between server and clients in a round."""

    def begin_round(self, message: Message) -> None:
        """Forget the last round; ``message`` is what every client of this one downloads."""
        self._message = message
        self._reached: set[int] = set()
        self._answered = self._upload = 0
        self._select_s = self._train_s = 0.0
        self._probe_s: float | None = None
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._sizes: list[int] = []
        self._start = time.perf_counter()

    def count_answers(self, answers: Iterable[tuple[int, Tensors]]) -> dict[int, Tensors]:
        """Client -> answer; whoever answers has downloaded the message for it."""
        start = time.perf_counter()
        received = dict(answers)
        if received:
            self._probe_s = time.perf_counter() - start
        self._reached.update(received)
        self._answered = sum(map(count_bytes, received.values()))
        return received

    def count_cohort(self, cohort: Sequence[int]) -> Sequence[int]:
        """The same cohort; the time since the start, without the answers, is its selection time."""
        self._select_s = time.perf_counter() - self._start - (self._probe_s or 0)
        self._reached.update(cohort)
        return cohort

    def count_arrivals(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates; the time spent waiting for them is the training time."""
        asked = time.perf_counter()
        for update in updates:
            self._train_s += time.perf_counter() - asked
            self._upload += update.nbytes
            yield update
            asked = time.perf_counter()

    def observe(self, update: Update) -> None:
        """Take in what an accepted client reports of its training."""
        self._sizes.append(update.num_samples)
        for name, value in update.metrics.items():
            self._metrics[name].append(value)

    def contribution(self) -> Contribution:
        """What passed between this rank and its clients; the wait for the other ranks begins."""
        self._reduced_at = time.perf_counter()
        return Contribution(items=(self._upload, self._sizes, self._metrics))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """What passed between all ranks and their clients; the wait counts as training time."""
        self._train_s += time.perf_counter() - self._reduced_at
        uploads, sizes, metrics = zip(*items, strict=True)
        self._upload, self._sizes = sum(uploads), list(chain(*sizes))
        names = dict.fromkeys(chain(*metrics))
        self._metrics = {
            name: list(chain(*(each.get(name, ()) for each in metrics))) for name in names
        }

    def metrics(self) -> dict[str, float]:
        """``train/*``, ``cost/*`` and ``time/*`` so far, whatever the order of the updates.

        ``train/loss`` is the clients' mean training loss, weighted by their samples;
        ``train/loss_std`` the population standard deviation over clients; what the parts noted is
        its mean over the clients that noted it. Costs are bytes of tensors over all clients that
        the server talked to; a client that is questioned and then trains downloads once.
        ``time/probe_s`` is there if somebody was questioned.
        """
        elapsed = time.perf_counter() - self._start
        times = {"time/select_s": self._select_s, "time/train_s": self._train_s}
        if self._probe_s is not None:
            times["time/probe_s"] = self._probe_s
        metrics: dict[str, float] = {
            "cost/download_bytes": len(self._reached) * self._message.nbytes,
            "cost/upload_bytes": self._answered + self._upload,
            **times,
            "time/server_s": elapsed - sum(times.values()),
        }
        for name, values in self._metrics.items():
            metrics[name] = fsum(values) / len(values)
        if losses := self._metrics.get("loss"):
            mean = metrics.pop("loss")
            weighted = [loss * n for loss, n in zip(losses, self._sizes, strict=True)]
            variance = fsum((loss - mean) ** 2 for loss in losses) / len(losses)
            metrics["train/loss"] = fsum(weighted) / sum(self._sizes)
            metrics["train/loss_std"] = variance**0.5
        return metrics
