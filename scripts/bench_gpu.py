"""All that is to be known of fedexp on a GPU, in one command for a machine lent for minutes.

    python scripts/bench_gpu.py --to FOLDER [--minutes 9] [--images DIR] [STEP ...]
    python scripts/bench_gpu.py --reference    # on a CPU: the numbers to compare presets with

The steps, the most important first:

    1. Every preset, tiny, against the CPU's numbers in scripts/results/presets_cpu.json.
    2. Seconds, memory and waits of a round: small clients and ResNet-18, serial, stacked, in bf16
       and compiled, against a loop as written by hand.
    3. FedNH's 200 rounds of Table 1 of its paper, with the goal of a minute.
    4. Two ranks, a resumed run, deterministic, bf16, compiled: against the plain run.
    5. Cells of the papers, which need DIR, a folder of CIFAR-10 as images (train/<class>/*,
       test/<class>/*). The others take random images without it.

Each step is a process of its own with a time limit. Its result is written to FOLDER/STEP.json as
soon as a part of it is known, its output to FOLDER/STEP.log. A step that fails or takes too long
ends alone, and its result says so. The same command goes on: a step whose result is finished is not
repeated. On a machine with nothing but PyTorch, scripts/wheels.sh has what else is needed.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from threading import Thread

from benchmark.gpu.result_file import read, write
from benchmark.gpu.steps import STEPS, Step

LEAST_SECONDS = 5.0
"""No step begins with less time than this."""

TINY_TIMES = 5
"""With ``--tiny`` a step may take so many times its limit, because a CPU may be slow."""


def main() -> None:
    arguments = _parsed()
    if arguments.reference:
        import_module("benchmark.gpu.presets").write_reference()
    elif arguments.run:
        _work(arguments)
    elif arguments.device == "cuda" and not import_module("torch").cuda.is_available():
        sys.exit("--device cuda: PyTorch finds no GPU on this machine; cpu tries the command")
    else:
        sys.exit(_run_all(arguments))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [step.name for step in STEPS]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(names)}")
    parser.add_argument("--to", type=Path, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--images", metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu", "pretended"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="little data, larger limits: to try the command"
    )
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one step, in its own process
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if not found.reference and found.to is None:
        parser.error("--to FOLDER: is missing")
    for name in found.steps:
        if name not in names:
            parser.error(f"{name}: no such step; there are {', '.join(names)}")
    return found


def _run_all(arguments: argparse.Namespace) -> int:
    """Run the steps until the time is over; returns whether some did not finish."""
    deadline, code = time.monotonic() + 60 * arguments.minutes, 0
    arguments.to.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        if arguments.steps and step.name not in arguments.steps:
            continue
        left = deadline - time.monotonic()
        if read(arguments.to, step.name).get("done"):
            print(f"{step.name}: is there", flush=True)
        elif left < LEAST_SECONDS:
            print(f"{step.name}: no time left; the same command goes on here", flush=True)
        else:
            limit = step.seconds * (TINY_TIMES if arguments.tiny else 1)
            if why := _run_step(arguments, step, min(limit, left)):
                write(arguments.to, step.name, read(arguments.to, step.name) | {"unfinished": why})
                code = 1
            print(f"{step.name}: {_told(arguments.to, step)}", flush=True)
    return code


def _told(folder: Path, step: Step) -> str:
    """The result in one line: why it is not finished, or its numbers."""
    found = read(folder, step.name)
    if why := found.get("unfinished"):
        return str(why)
    numbers = {k: v for k, v in found.items() if isinstance(v, int | float | str) and k != "done"}
    return ", ".join(f"{name} {value}" for name, value in numbers.items())


def _run_step(arguments: argparse.Namespace, step: Step, seconds: float) -> str | None:
    """Run one step in its own process; returns why it did not finish, None if it did."""
    given = ["--to", str(arguments.to), "--device", arguments.device]
    given += ["--images", arguments.images] if arguments.images else []
    given += ["--tiny"] if arguments.tiny else []
    command = [sys.executable, __file__, "--run", step.name, "--seconds", str(seconds), *given]
    log = arguments.to / f"{step.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # see _end_with_the_command
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it has started
            process.wait()
            return f"stopped after {seconds:.0f} s; what it has found is in its file"
    lines = log.read_text(errors="replace").strip().splitlines() or [""]
    return f"failed: {lines[-1]}" if code else None


def _work(arguments: argparse.Namespace) -> None:
    """In the process of a step: write each result that its function yields."""
    _end_with_the_command()
    step = next(each for each in STEPS if each.name == arguments.run)
    place = import_module("benchmark.gpu.place").Place(
        arguments.to, arguments.device, arguments.tiny, arguments.images, arguments.seconds
    )
    place.prepare()
    module, _, function = step.work.partition(".")
    work = getattr(import_module(f"benchmark.gpu.{module}"), function)
    always = {"machine": import_module("benchmark.process").machine(), "device": arguments.device}
    found: dict[str, object] = {}
    for found in work(place, read(place.folder, step.name), *step.arguments):
        write(place.folder, step.name, always | found)
    write(place.folder, step.name, always | found | {"done": "unfinished" not in found})


def _end_with_the_command() -> None:
    """End this process and its ranks when the command is killed, which closes the pipe."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.killpg(0, signal.SIGKILL)

    Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
