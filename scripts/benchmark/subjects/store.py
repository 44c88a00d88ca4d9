"""The cost of keeping clients' tensors on disk: seconds a round and peak memory.

    python scripts/bench.py store [--clients 1000] [--ram-gib 1 4] [--rounds 2]

SCAFFOLD on conv2cifar: every client takes part in every round with two random images; all local
models are kept, and scored on ten images after the last round. Each value of ``clients.ram_gib`` is
measured in its own process. Images and tensors go to the folder for temporary files.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmark.process import in_own_process, peak_mib
from benchmark.rounds import prepare
from fedexp.state.ram_and_disk import storage_bytes

GIB = 2**30
SCAFFOLD = ["algorithm=fedavg", "regularizer=control_variates", "optimizer.momentum=0"]
TRAINING = ["model=conv2cifar", "partition=iid", "local.epochs=1", "local.batch_size=2"]


def write_images(root: Path, count: int) -> None:
    """Random 32x32 colour images of ten classes: ``count`` for training, ten for testing."""
    draw = np.random.default_rng(0)
    for split, images in (("train", count), ("test", 10)):
        for number in range(images):
            path = root / split / f"class{number % 10}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path, compress_level=0)


def measure(overrides: list[str], rounds: int) -> dict[str, float]:
    """Sizes in GiB and seconds a round, of this process, which must do nothing else."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = prepare(overrides, always=(), folder=folder)
        before = peak_mib()
        start, cpu_start = time.perf_counter(), time.process_time()
        for round in range(1, rounds + 1):
            federation.run_round(round)
        seconds = (time.perf_counter() - start) / rounds
        cpu_seconds = (time.process_time() - cpu_start) / rounds
        highest = peak_mib()
        kept = sum(storage_bytes(vars(state)) for _, state in federation.store.states())
        return {
            "kept": kept / GIB,
            "on disk": sum(path.stat().st_size for path in folder.glob("*.pt")) / GIB,
            "s a round": seconds,
            "CPU s a round": cpu_seconds,
            "memory before": before / 1024,
            "peak": highest / 1024,
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--ram-gib", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--rounds", type=int, default=2)


def main(arguments: argparse.Namespace) -> None:
    rows = []
    title = f"{arguments.clients} clients, SCAFFOLD, conv2cifar; sizes in GiB"
    with tempfile.TemporaryDirectory() as temporary:
        images = Path(temporary, "images")
        write_images(images, 2 * arguments.clients)
        shared = [
            *SCAFFOLD,
            *TRAINING,
            "data=image_folder",
            f"data.root={images}",
            f"data.cache={temporary}/cache",
            f"clients.count={arguments.clients}",
            f"clients.per_round={arguments.clients}",
            f"rounds={arguments.rounds}",
            f"measure.personal.every={arguments.rounds}",
        ]
        for bound in arguments.ram_gib:
            overrides = [*shared, f"clients.ram_gib={bound}"]
            rows.append(in_own_process(measure, overrides, arguments.rounds))
    table = Table("clients.ram_gib", *rows[0], title=title)
    for bound, row in zip(arguments.ram_gib, rows, strict=True):
        table.add_row(f"{bound:g}", *(f"{value:.2f}" for value in row.values()))
    Console().print(table)
