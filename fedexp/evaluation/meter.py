"""One round's traffic, times and training losses."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import fsum
from typing import Any

from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.distributed.ranks import Contribution

_FROM_TRAINING = ("loss", "cross_entropy")
"""Metrics of every client's local training: they get the prefix ``train/`` and a deviation."""


class Meter:
    """Measures a round's traffic and times, and averages what clients report of their training."""

    def begin_round(self, message: Message) -> None:
        """Start a round; ``message`` is what every client of it downloads."""
        self._message = message
        self._reached: set[int] = set()
        self._answered = self._upload = 0
        self._select_s = self._train_s = 0.0
        self._probe_s: float | None = None
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._sizes: list[int] = []
        self._start = time.perf_counter()

    def count_answers(self, answers: Iterable[tuple[int, Tensors]]) -> dict[int, Tensors]:
        """Client -> answer; a client that answers has downloaded the message."""
        start = time.perf_counter()
        received = dict(answers)
        if received:
            self._probe_s = time.perf_counter() - start
        self._reached.update(received)
        self._answered = sum(map(count_bytes, received.values()))
        return received

    def count_cohort(self, cohort: Sequence[int]) -> Sequence[int]:
        """The same cohort; the time since the start, without the answers', is selection time."""
        self._select_s = time.perf_counter() - self._start - (self._probe_s or 0)
        self._reached.update(cohort)
        return cohort

    def count_arrivals(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates; the time spent waiting for them is training time."""
        asked = time.perf_counter()
        for update in updates:
            self._train_s += time.perf_counter() - asked
            self._upload += update.nbytes
            yield update
            asked = time.perf_counter()

    def observe(self, update: Update) -> None:
        """Take the metrics of an accepted update."""
        self._sizes.append(update.num_samples)
        for name, value in update.metrics.items():
            self._metrics[name].append(value)

    def contribution(self) -> Contribution:
        """This rank's uploads, sizes and metrics; from now on it waits for the other ranks."""
        self._reduced_at = time.perf_counter()
        return Contribution(items=(self._upload, self._sizes, self._metrics))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Those of all ranks; the time spent waiting for them is training time."""
        self._train_s += time.perf_counter() - self._reduced_at
        uploads, sizes, metrics = zip(*items, strict=True)
        self._upload, self._sizes = sum(uploads), list(chain(*sizes))
        names = dict.fromkeys(chain(*metrics))
        self._metrics = {
            name: list(chain(*(each.get(name, ()) for each in metrics))) for name in names
        }

    def metrics(self) -> dict[str, float]:
        """``train/*``, ``cost/*`` and ``time/*``, whatever the order of the updates.

        ``train/loss`` is the mean over clients of the training loss (the whole objective, over all
        steps), weighted by their samples. ``train/cross_entropy`` is the plain mean over clients of
        the cross-entropy that they report. ``train/loss_std`` and ``train/cross_entropy_std`` are
        population standard deviations over clients. Every metric that parts log is its mean over
        the clients that logged it.

        Costs are bytes of tensors over all clients that the server exchanged messages with; a
        client that is probed and then trains downloads once. ``time/probe_s`` is present if
        clients were probed.

        Engines report what each client stores, so these are means over the clients that trained:
        ``cost/client_memory_bytes``, the tensors that the method makes a client keep between
        rounds, as control variates, previous models and private weights (without data, and without
        the local model that is kept for personal evaluation alone); ``cost/stored_parameters``, the
        numbers that its local training holds at once: the model, the frozen models that the loss
        compares with, anchors and other buffers of the parts.
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
            if name in _FROM_TRAINING:
                metrics[f"train/{name}"], metrics[f"train/{name}_std"] = _mean_and_std(values)
            else:
                metrics[name] = fsum(values) / len(values)
        if losses := self._metrics.get("loss"):
            weighted = [loss * n for loss, n in zip(losses, self._sizes, strict=True)]
            metrics["train/loss"] = fsum(weighted) / sum(self._sizes)
        return metrics


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation."""
    mean = fsum(values) / len(values)
    return mean, (fsum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
