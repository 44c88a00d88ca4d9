"""The cost of a round with each engine, compared with a raw PyTorch loop, and its growth.

    python scripts/bench.py rounds [--images DIR] [--repeats 9] [--only jobs|processes|growth]
        [--profile CONTENDER]

Seconds are medians. A ratio is the seconds divided by those of the raw loop (contiguous images, two
threads). Evaluation is off. ``processes`` compares two processes with a single process, with one
thread in each process. ``growth`` measures large populations and cohorts. DIR is a folder of
CIFAR-10 as images (train/<class>/*, test/<class>/*), by default the environment variable
FEDEXP_CIFAR10_IMAGES; without DIR only the digits job runs. Writes
scripts/results/bench_<cpu or cuda>.json.
"""

import argparse

from rich.console import Console

from benchmark.comparison import compare
from benchmark.growth import grow
from benchmark.jobs import CONTENDERS, PROCESSES, select_jobs
from benchmark.process import CUDA, machine
from benchmark.profiling import profile
from benchmark.results import add_images, read, write


def add_options(parser: argparse.ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=["jobs", "processes", "growth"])
    parser.add_argument("--profile", choices=[each.name for each in CONTENDERS[1:]])


def main(arguments: argparse.Namespace) -> None:
    console, jobs = Console(), select_jobs(arguments.images)
    if arguments.profile:
        profile(jobs, arguments.profile, console)
        return
    name = f"bench_{'cuda' if CUDA else 'cpu'}"
    found = read(name)
    found["machine"] = machine()
    for part, contenders in {"jobs": CONTENDERS, "processes": PROCESSES}.items():
        if contenders and arguments.only in (None, part):
            found[part] = compare(jobs, contenders, arguments.repeats, console)
    if arguments.only in (None, "growth"):
        found["growth"] = grow(console)
    console.print(found["machine"])
    write(name, found)
