"""The cost of a round in other simulators, compared with fedexp and a raw PyTorch loop.

    python scripts/bench.py peers [--images DIR] [--rounds 6] [--only NAME ...] [--keep DIR]

Every peer is installed from PyPI into a throw-away environment on top of this one, so that all use
the same PyTorch. The row of a peer that does not install or run says why. The job is the same for
all: model, first weights, samples of each client, batch size, epochs, SGD; no evaluation; all cores
of the machine. The contenders are started together and take turns, one round each, so that other
load slows all of them alike; the first round of each is not counted. Seconds are medians. A ratio
is the seconds divided by those of the raw loop. Writes scripts/results/peers.json. The script is
not part of CI, because it needs PyPI and some minutes.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmark.jobs import JOBS
from benchmark.peers.task import Task
from benchmark.process import machine
from benchmark.results import SCRIPTS, add_images, write
from benchmark.rounds import configure, prepare
from fedexp.runtime.plan import plan

DIGITS = "digits, MLP, 100 clients"
CIFAR = "CIFAR-10, conv2cifar, 10 clients of 500"
PEER_JOBS = {
    DIGITS: JOBS[DIGITS],
    CIFAR: [
        *["data=image_folder", "data.subset=5000", "partition=iid", "clients.count=10"],
        *["clients.per_round=10", "model=conv2cifar", "local.batch_size=64", "local.epochs=1"],
    ],
}
NO_PACKAGE = {"PFLlib": "not installable: no package", "FL-bench": "not installable: no package"}
PATIENCE = 300
"""Longest wait for one answer of a contender, in seconds; the first wait includes its start."""


@dataclass(frozen=True)
class Contender:
    """A program in ``benchmark/peers``, the package that it needs, and its further arguments."""

    name: str
    program: str
    requirement: str | None = None
    arguments: tuple[str, ...] = ()


CONTENDERS = [
    Contender("raw loop", "raw"),  # first: the others are compared with it
    Contender("fedexp, serial", "ours", arguments=("engine=serial",)),
    Contender("fedexp, vectorized", "ours", arguments=("engine=vectorized",)),
    Contender("Flower", "flower", "flwr[simulation]"),
    Contender("pfl-research", "pfl_research", "pfl[pytorch]"),
    Contender("fluke", "fluke_fl", "fluke-fl"),
]


class DoesNotRunError(Exception):
    """Why a contender has no result, in a few words."""


def install(folder: Path, requirement: str) -> Path:
    """Install this package into a new environment on top of this one; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, symlinks=True, with_pip=False)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise DoesNotRunError(f"does not install: {last_line(done.stderr)}")
    return python


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


def make_task(overrides: list[str], rounds: int) -> Task:
    """The job as plain data; to read it, only the model's classes are needed from fedexp."""
    config, data = configure(overrides), prepare(overrides).data
    planned = plan(config)
    optimizer = config.optimizer.node
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        backbone = planned.backbone(input_shape=planned.description.input_shape)
        head = nn.Linear(planned.feature_dim, planned.description.num_classes)
    inputs, labels = data.train.gather(torch.arange(len(data.train)))
    assert isinstance(config.local.epochs, int)
    return Task(
        nn.Sequential(backbone, head),
        inputs,
        labels,
        [client.train_index for client in data.clients],
        {name: optimizer[name] for name in ("lr", "momentum", "weight_decay")},
        config.local.epochs,
        config.local.batch_size,
        rounds,
        os.cpu_count() or 1,
        overrides,
    )


@contextmanager
def running(contender: Contender, python: Path, task: Path) -> Iterator[tuple[Connection, Path]]:
    """Start a contender's process; yield the connection to it and its log file."""
    ours, theirs = Pipe()
    log = task.with_suffix(f".{contender.name}.log")
    path = os.pathsep.join(map(str, (SCRIPTS, SCRIPTS.parent)))
    command = [str(python), "-m", f"benchmark.peers.{contender.program}", str(theirs.fileno())]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *contender.arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": path, "PEERS_TASK": str(task)},
            cwd=task.parent,
        )
    theirs.close()
    try:
        yield ours, log
    finally:
        ours.close()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def received(connection: Connection, log: Path) -> Any:
    """The next value that the contender sends."""
    try:
        if connection.poll(PATIENCE):
            return connection.recv()
    except (EOFError, OSError):
        raise DoesNotRunError(f"does not run: {last_line(log.read_text())}") from None
    raise DoesNotRunError(f"no round in {PATIENCE} seconds")


def compare(task: Path, rounds: int, pythons: dict[Contender, Path]) -> dict[str, dict[str, Any]]:
    """Name -> version, seconds of each round, final loss; or why there are none."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        started = {c: stack.enter_context(running(c, p, task)) for c, p in pythons.items()}

        def ask(contender: Contender, question: str) -> None:
            connection, log = started[contender]
            row = found.setdefault(contender.name, {"seconds": []})
            if "why" in row:
                return
            try:
                if question == "round":
                    connection.send(question)
                    row["seconds"].append(received(connection, log))
                else:
                    row[question] = received(connection, log)
            except (DoesNotRunError, BrokenPipeError) as error:
                row["why"] = str(error)

        for contender in started:
            ask(contender, "version")
        for round in range(rounds):
            for contender in started if round % 2 else reversed(started):
                ask(contender, "round")
        for contender in started:
            ask(contender, "loss")
    return found


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table("time / raw loop", "seconds", "loss after", "job", "", "version")
    for row in rows:
        if "why" in row:
            table.add_row("", "", "", row["job"], row["name"], row["why"])
            continue
        numbers = f"{row['ratio']:.2f}", f"{row['median']:.3f}", f"{row['loss']:.3f}"
        table.add_row(*numbers, row["job"], row["name"], row["version"])
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the environments there")


def main(arguments: argparse.Namespace) -> None:
    console = Console()
    rows: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fedexp-peers-") as name:
        folder = Path(name)
        pythons, missing = {}, dict(NO_PACKAGE)
        for contender in CONTENDERS:
            if arguments.only and contender.name not in (CONTENDERS[0].name, *arguments.only):
                continue
            try:
                pythons[contender] = Path(sys.executable)
                if contender.requirement:
                    console.print(f"installing {contender.requirement} ...")
                    place = (arguments.keep or folder) / contender.program
                    pythons[contender] = install(place, contender.requirement)
            except DoesNotRunError as error:
                missing[contender.name] = str(error)
                del pythons[contender]
        for job, overrides in PEER_JOBS.items():
            if "CIFAR" in job:
                if not arguments.images:
                    continue
                overrides = [*overrides, f"data.root={arguments.images}"]
            console.print(f"{job} ...")
            task = folder / f"{len(rows)}.pt"
            torch.save(make_task(overrides, arguments.rounds), task)
            found = compare(task, arguments.rounds, pythons)
            found |= {name: {"seconds": [], "why": why} for name, why in missing.items()}
            raw = found[CONTENDERS[0].name]["seconds"][1:]
            for name, row in found.items():
                if "why" not in row:
                    row["median"] = statistics.median(row["seconds"][1:])
                    row["ratio"] = row["median"] / statistics.median(raw)
                rows.append({"job": job, "name": name, **row})
    console.print(table_of(rows))
    result = {
        "machine": machine(),
        "command": shlex.join(["python", "scripts/bench.py", *plain(sys.argv[1:])]),
        "load_average_before": load_before,
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }
    write("peers", result)


def plain(given: list[str]) -> list[str]:
    """The arguments without this machine's folders."""
    return ["DIR" if Path(each).is_absolute() else each for each in given]
