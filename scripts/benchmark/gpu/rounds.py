"""Seconds, memory and waits of a round: by a hand-written loop, and in several ways by fedexp."""

import statistics
from collections.abc import Iterator
from typing import Any

from torch._dynamo.utils import counters

from benchmark.gpu.place import COMPILED, NO_COMPILER, Place
from benchmark.jobs import BF16, PLAIN, RAW, VECTORIZED
from benchmark.rounds import Run, fedexp_round, raw_round, seconds_of

ROUNDS, WARM_UP = 9, 2
COHORT = ["partition=iid", "clients.count=100", "clients.per_round=10", "local.batch_size=64"]
JOBS = {
    "small": [*COHORT, "model=simple_cnn", "local.epochs=5"],
    "resnet18": [*COHORT, "model=resnet18", "model.norm=group", "local.epochs=1"],
}
WAYS = {
    "hand-written": (*PLAIN, RAW),
    "serial": PLAIN,
    "vectorized": VECTORIZED,
    "serial_bf16": BF16,
    "serial_compiled": (*PLAIN, COMPILED),
}
TINY = ["data.subset=400", "local.epochs=1", "local.batch_size=20", "clients.count=20"]

FEW = (2, 3, 4, 6)
"""Cohorts of clients, to see from which on a stack pays."""

WHOLE_ROUNDS = 200
TABLE_1 = ["experiment=fednh/cifar10_dir03", "algorithm=fednh"]
TABLE_1 += ["measure.global.every=10", f"rounds={WHOLE_ROUNDS}"]
GOAL_SECONDS = 60


def measure(place: Place, before: dict[str, Any], job: str, way: str) -> Iterator[dict[str, Any]]:
    """The seconds of each round, then the median after the warm-up, memory and waits."""
    tiny = [*TINY, "clients.per_round=2"] if place.tiny else []
    overrides = [*JOBS[job], *place.cifar10, *place.on_device, *tiny, *WAYS[way]]
    if place.lacks_compiler(overrides):
        yield NO_COMPILER
        return
    graphs = counters["stats"]["unique_graphs"]
    run = raw_round(overrides) if RAW in overrides else fedexp_round(overrides)
    seconds: list[float] = []
    for round in range(1, (3 if place.tiny else ROUNDS) + 1):
        seconds.append(_seconds(place, run, round))
        yield {"seconds": seconds, "median": _median(seconds), "peak_mib": place.peak_mib()}
    with place.counted_waits() as found:
        run(ROUNDS + 1)
    last = {"seconds": seconds, "median": _median(seconds), "peak_mib": place.peak_mib()}
    last["compiled_graphs"] = counters["stats"]["unique_graphs"] - graphs
    yield last | {"waits": None if place.device == "cpu" else len(found)}


def few_clients(place: Place, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The median seconds of a round of few small clients, serial and stacked."""
    found: dict[str, Any] = {}
    for size in FEW[:1] if place.tiny else FEW:
        overrides = [*JOBS["small"], *place.cifar10, *place.on_device, "local.epochs=1"]
        overrides += [*(TINY if place.tiny else []), f"clients.per_round={size}"]
        for name in ("serial", "vectorized"):
            run = fedexp_round([*overrides, *WAYS[name]])
            seconds = [_seconds(place, run, round) for round in range(1, 3 if place.tiny else 12)]
            found[f"{size} clients, {name}"] = _median(seconds)
            yield found


def whole_run(place: Place, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """FedNH's run of Table 1 with the global model's scores; start and loading do not count."""
    tiny = [*TINY, "clients.per_round=2", "rounds=4", "measure.cohort=null"] if place.tiny else []
    run = fedexp_round([*TABLE_1, *place.cifar10, *place.on_device, *tiny])
    rounds, seconds = 4 if place.tiny else WHOLE_ROUNDS, list[float]()
    for round in range(1, rounds + 1):
        seconds.append(_seconds(place, run, round))
        if round % 10 == 0 or round == rounds:
            estimated = sum(seconds) / round * rounds
            met = estimated <= GOAL_SECONDS
            yield {"rounds": round, "seconds": sum(seconds), "estimated": estimated, "met": met}


def _seconds(place: Place, run: Run, round: int) -> float:
    def to_the_end(number: int) -> None:
        run(number)
        place.synchronize()

    place.synchronize()
    return seconds_of(to_the_end, round)


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds[WARM_UP:] or seconds)
