"""Three targets of speed, measured on one GPU in a few minutes.

    python scripts/bench_gpu.py [--images DIR] [--minutes 8]

    1. One run of FedNH as in Table 1 of its paper (CIFAR-10, 200 rounds, conv2cifar, evaluation
       every 10 rounds) takes at most a minute, without start and loading.
    2. Ten clients with a small CNN train at least five times as fast with the fastest of several
       ways, such as compiled steps or stacked clients, as with the serial engine.
    3. Clients with a ResNet-18 train on at least 0.9 times as many images a second as a plain loop.

DIR is a folder of CIFAR-10 as images (train/<class>/*, test/<class>/*). Without DIR the images are
random, which takes as long. After the given minutes the program skips the remaining measurements.
The seconds of an unfinished run are estimated from its first rounds. Writes
scripts/results/bench_gpu.json after every measurement.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from benchmark import random_images
from benchmark.process import machine
from benchmark.results import RESULTS
from benchmark.rounds import Run, fedexp_round, raw_round, seconds_of
from rich.console import Console

from fedexp.distributed.processes import spawn

ROUNDS = 200
TABLE_1 = ["experiment=fednh/cifar10_dir03", "measure.global.every=10", f"rounds={ROUNDS}"]
TABLE_1 += ["measure.personal.of=all", "algorithm=fednh"]
COHORT = ["partition=iid", "clients.count=100", "clients.per_round=10", "local.batch_size=64"]
SMALL = [*COHORT, "model=simple_cnn", "local.epochs=5"]
LARGE = [*COHORT, "model=resnet18", "model.norm=group", "local.epochs=1"]
PLAIN = ["engine.channels_last=false"]
BF16 = ["engine.channels_last=true", "engine.precision=bf16-mixed"]
WAYS: dict[str, list[str]] = {
    "serial": PLAIN,  # first: others are compared with it
    "serial, compiled": [*PLAIN, "engine.compile=true"],
    "serial, reduce-overhead": [*PLAIN, "engine.compile=reduce-overhead"],
    "serial, reduce-overhead, bf16": [*BF16, "engine.compile=reduce-overhead"],
    "vectorized": ["engine=vectorized", *PLAIN],
    "vectorized, bf16": ["engine=vectorized", *BF16],
    "vectorized, compiled": ["engine=vectorized", "engine.compile=true"],
}
SHARES_GPU = [*PLAIN, "engine.processes_per_device=4"]
IMAGES_A_ROUND = 10 * 500
PER_MEASUREMENT = 9
"""Rounds of one measurement; the first two warm up."""


def timed(run: Run, rounds: int, deadline: float) -> Iterator[float]:
    """Seconds of each round, until the deadline."""

    def to_the_end(number: int) -> None:
        run(number)
        torch.cuda.synchronize()

    for round in range(1, rounds + 1):
        if time.monotonic() > deadline:
            return
        torch.cuda.synchronize()
        yield seconds_of(to_the_end, round)


def median(run: Run, deadline: float) -> float | None:
    """Median seconds of a round after the warm-up; None if there was time for less than three."""
    seconds = list(timed(run, PER_MEASUREMENT, deadline))[2:]
    return statistics.median(seconds) if len(seconds) >= 3 else None


def of_rank(overrides: list[str]) -> float:
    """Like ``median``, without a deadline: all processes must do the same number of rounds."""
    run = fedexp_round(overrides)
    seconds = list(timed(run, PER_MEASUREMENT, float("inf")))
    return statistics.median(seconds[2:])


def table_1(data: list[str], deadline: float) -> dict[str, Any]:
    """Seconds of the whole run, measured for at most 2.5 minutes."""
    run = fedexp_round([*TABLE_1, *data])
    seconds = list(timed(run, ROUNDS, min(deadline, time.monotonic() + 150)))
    done, spent = len(seconds), sum(seconds)
    estimated = (
        spent if done == ROUNDS else seconds[0] + sum(seconds[1:]) * (ROUNDS - 1) / max(1, done - 1)
    )
    return {"seconds": estimated, "rounds": done, "estimated": done < ROUNDS}


def small(data: list[str], deadline: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, overrides in WAYS.items():
        try:
            seconds = median(fedexp_round([*SMALL, *data, *overrides]), deadline)
        except Exception as error:  # one way's failure is a result as well
            found[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        if seconds is not None:
            found[name] = seconds
    if time.monotonic() < deadline - 60:
        found["4 processes"] = spawn(of_rank, 4, [*SMALL, *data, *SHARES_GPU])
    times = {name: each for name, each in found.items() if isinstance(each, float)}
    fastest = min(times, key=lambda name: times[name])
    return {"seconds": found, "fastest": fastest, "speedup": times["serial"] / times[fastest]}


def large(data: list[str], deadline: float) -> dict[str, Any]:
    loops = {"raw loop": raw_round([*LARGE, *data, *PLAIN])}
    loops["serial"] = fedexp_round([*LARGE, *data, *PLAIN])
    loops["serial, bf16"] = fedexp_round([*LARGE, *data, *BF16])
    times = {name: median(run, deadline) for name, run in loops.items()}
    rates = {name: IMAGES_A_ROUND / each for name, each in times.items() if each}
    return {"images_a_second": rates, "share": rates["serial"] / rates["raw loop"]}


TARGETS = {
    "FedNH, Table 1: seconds": (table_1, "seconds", 60, lambda value: value <= 60),
    "ten small clients: speed-up": (small, "speedup", 5, lambda value: value >= 5),
    "ResNet-18: share of a plain loop": (large, "share", 0.9, lambda value: value >= 0.9),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images")
    parser.add_argument("--minutes", type=float, default=8)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_gpu.py: needs a GPU with CUDA, of which this machine has none")
    deadline = time.monotonic() + 60 * arguments.minutes - 15
    images = arguments.images
    data = ["data=image_folder", f"data.root={images}"] if images else random_images.OVERRIDES
    result: dict[str, Any] = {"machine": machine(), "images": "CIFAR-10" if images else "random"}
    console = Console()
    for name, (measure, key, target, is_met) in TARGETS.items():
        try:
            found = measure(data, deadline)
            found |= {"target": target, "met": is_met(found[key])}
        except Exception as error:  # the others are measured all the same
            found = {"why": f"{type(error).__name__}: {error}".partition("\n")[0]}
        result[name] = found
        console.print(name, found)
        (RESULTS / "bench_gpu.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
