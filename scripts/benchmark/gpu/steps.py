"""The list of the steps, the most important first. It imports nothing that a machine may lack."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: also the name of its result, ``NAME.json``.
        seconds: after this time the step is stopped.
        work: MODULE.FUNCTION in ``benchmark.gpu``; the function gets the place, the earlier
            unfinished result and ``arguments``, and yields the result, more and more of it. A last
            result with ``unfinished``, the reason, is one that the next call goes on from.
        arguments: the further arguments.
    """

    name: str
    seconds: int
    work: str
    arguments: tuple[str, ...] = ()


JOBS = ("small", "resnet18")
WAYS = ("hand-written", "serial", "vectorized", "serial_bf16", "serial_compiled")
CHECKS = ("two_ranks", "resume", "deterministic", "bf16", "compile")
CELLS = ("fednh", "fedavg", "hics", "fedsc", "fedgela")

_LIMITS = {"serial_compiled": 120, "compile": 120}
"""To compile takes most of the time."""

STEPS = [
    Step("presets", 150, "presets.compare"),
    *[
        Step(f"rounds_{job}_{way}", _LIMITS.get(way, 60), "rounds.measure", (job, way))
        for job in JOBS
        for way in WAYS
    ],
    Step("few_clients", 90, "rounds.few_clients"),
    Step("fednh_200_rounds", 150, "rounds.whole_run"),
    *[Step(f"check_{name}", _LIMITS.get(name, 60), "ways.check", (name,)) for name in CHECKS],
    *[Step(f"cell_{name}", 3600, "cells.run", (name,)) for name in CELLS],
]
