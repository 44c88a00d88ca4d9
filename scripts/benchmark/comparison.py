"""Compares contenders, each in its own processes, measured in turns."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from threading import Thread
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.jobs import RAW, TARGETS, Contender
from benchmark.process import CUDA
from benchmark.rounds import Run, fedexp_round, raw_round, seconds_of
from fedexp.distributed.processes import spawn


def compare(
    jobs: dict[str, list[str]], contenders: list[Contender], repeats: int, console: Console
) -> list[dict[str, Any]]:
    """Print one table, with ratios to the first contender; returns its rows."""
    rows = []
    for job, overrides in jobs.items():
        console.print(f"{job} ...")
        medians = [statistics.median(each) for each in measure(overrides, contenders, repeats)]
        for contender, seconds in zip(contenders, medians, strict=True):
            row = {"job": job, **asdict(contender), "ratio": seconds / medians[0]}
            target = TARGETS.get((job, contender.name)) if RAW in contenders[0].overrides else None
            row |= {"seconds": seconds, "target": target}
            rows.append(row)
    table = Table(f"time / {contenders[0].name}", "target", "seconds", "job", "")
    for row in rows:
        target = row["target"]
        cells = f"{row['ratio']:.2f}", f"{target}" if target else "", f"{row['seconds']:.3f}"
        table.add_row(*cells, row["job"], row["name"])
    console.print(table)
    return rows


def measure(job: list[str], contenders: list[Contender], repeats: int) -> list[list[float]]:
    """Seconds of a round of each contender, ``repeats`` times after a warm-up.

    The contenders take turns, in alternating order, so that other load slows all of them alike. A
    turn is two rounds, of which only the second is timed, because in a real run, too, a round
    follows another round.
    """
    with ExitStack() as stack:
        runs = [stack.enter_context(in_own_processes(each, job)) for each in contenders]
        seconds: list[list[float]] = [[] for _ in runs]
        for round in range(1, 2 * repeats + 3, 2):
            turns = list(zip(runs, seconds, strict=True))
            for run, times in turns if round % 4 == 1 else reversed(turns):
                run(round)
                times.append(seconds_of(run, round + 1))
    return [times[1:] for times in seconds]


@contextmanager
def in_own_processes(contender: Contender, job: list[str]) -> Iterator[Run]:
    """Yield a function that does a round in the contender's own processes.

    These processes sleep while other contenders are measured.
    """
    processes, threads = contender.processes, contender.threads
    overrides = [*job, *contender.overrides, f"engine.devices={processes}"]
    with Listener() as listener:
        work = (serve, processes, listener.address, overrides, threads)
        thread = Thread(target=spawn, args=work)
        thread.start()
        connections = [listener.accept() for _ in range(processes)]

        def run(round: int) -> None:
            for connection in connections:
                connection.send(round)
            for connection in connections:
                connection.recv()

        yield run
        for connection in connections:
            connection.send(None)
        thread.join()


def serve(address: str, overrides: list[str], threads: int) -> None:
    """One of a contender's processes: does the rounds that it is asked for."""
    torch.set_num_threads(threads)
    run = raw_round(overrides) if RAW in overrides else fedexp_round(overrides)
    connection: Connection = Client(address)
    while (round := connection.recv()) is not None:
        run(round)
        if CUDA:
            torch.cuda.synchronize()
        connection.send(None)
