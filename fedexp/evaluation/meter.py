"""What a round's traffic and the cohort's own numbers say."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import fsum
from typing import Any

from fedexp.messages import Message, Tensors, Update, count_bytes
from fedexp.ranks import Share


class Meter:
    """Stands between server and clients for one round and counts what passes."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._reached: set[int] = set()
        self._answered = self._upload = 0
        self._select_s = self._train_s = 0.0
        self._probe_s: float | None = None
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._sizes: list[int] = []
        self._start = time.perf_counter()

    def watch_answers(self, answers: Iterable[tuple[int, Tensors]]) -> dict[int, Tensors]:
        """Client -> answer; whoever answers has downloaded the message for it."""
        start = time.perf_counter()
        heard = dict(answers)
        if heard:
            self._probe_s = time.perf_counter() - start
        self._reached.update(heard)
        self._answered = sum(map(count_bytes, heard.values()))
        return heard

    def watch_choice(self, cohort: Sequence[int]) -> Sequence[int]:
        """The same cohort; the time until now, but for the answers, went into choosing it."""
        self._select_s = time.perf_counter() - self._start - (self._probe_s or 0)
        self._reached.update(cohort)
        return cohort

    def watch(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates; the time spent waiting for them is the training time."""
        asked = time.perf_counter()
        for update in updates:
            self._train_s += time.perf_counter() - asked
            self._upload += update.nbytes
            yield update
            asked = time.perf_counter()

    def note(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates; what these clients say of their training goes into the metrics."""
        for update in updates:
            self._sizes.append(update.num_samples)
            for name, value in update.metrics.items():
                self._metrics[name].append(value)
            yield update

    def give(self) -> Share:
        """What passed between this rank and its clients; now it waits for the other ranks."""
        self._given = time.perf_counter()
        return Share(listed=(self._upload, self._sizes, self._metrics))

    def take(self, sums: Tensors, listed: Sequence[Any]) -> None:
        """What passed between all ranks and their clients; waiting for them is training, too."""
        self._train_s += time.perf_counter() - self._given
        uploads, sizes, metrics = zip(*listed, strict=True)
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
