"""What it costs to keep clients' tensors on disk: seconds a round and peak memory.

    python scripts/bench_store.py [--clients 1000] [--ram-gib 1 4] [--rounds 2]

SCAFFOLD on conv2cifar: every client takes part in every round with two random images; all local
models are kept, and scored on ten images after the last round. Each value of ``clients.ram_gib`` is
measured in a process of its own. Images and tensors go to the folder for temporary files.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hydra
import numpy as np
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from PIL import Image
from rich.console import Console
from rich.table import Table

from fedexp.cli.command import config_folder
from fedexp.config.schema import validate
from fedexp.data.load import load_data
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import plan
from fedexp.tracking.tracker import Trackers

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


def measure(overrides: list[str], rounds: int, folder: Path) -> dict[str, float]:
    """Measure in this process, which must do nothing else. Sizes are in GiB."""
    with hydra.initialize_config_dir(config_folder(), version_base="1.3"):
        cfg = hydra.compose("config", overrides)
    config = validate(OmegaConf.to_container(cfg, resolve=True))
    planned, fabric = plan(config), Fabric(accelerator="cpu", devices=1)
    data = load_data(config, planned.source, fabric.device)
    federation = assemble(planned, fabric, data, Trackers([]), folder)
    before = peak()
    start, cpu_start = time.perf_counter(), time.process_time()
    for round in range(1, rounds + 1):
        federation.run_round(round)
    seconds = (time.perf_counter() - start) / rounds
    cpu_seconds = (time.process_time() - cpu_start) / rounds
    highest = peak()
    states = (state for _, state in federation.store.states())
    return {
        "kept": sum(state.nbytes for state in states) / GIB,
        "disk": sum(path.stat().st_size for path in folder.glob("*.pt")) / GIB,
        "seconds": seconds,
        "cpu": cpu_seconds,
        "before": before,
        "peak": highest,
    }


def peak() -> float:
    """Largest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def row(overrides: list[str], rounds: int) -> dict[str, float]:
    """``measure`` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        job = json.dumps([overrides, rounds, folder])
        command = [sys.executable, __file__, "--job", job]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--ram-gib", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        overrides, rounds, folder = arguments.job
        print(json.dumps(measure(overrides, rounds, Path(folder))))
        return
    columns = ["clients.ram_gib", "kept", "on disk", "s a round", "CPU s a round"]
    columns += ["memory before", "peak"]
    title = f"{arguments.clients} clients, SCAFFOLD, conv2cifar; sizes in GiB"
    table = Table(*columns, title=title)
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
            found = row([*shared, f"clients.ram_gib={bound}"], arguments.rounds)
            names = ("kept", "disk", "seconds", "cpu", "before", "peak")
            table.add_row(f"{bound:g}", *(f"{found[name]:.2f}" for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
