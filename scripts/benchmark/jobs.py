"""The jobs that are timed, and the contenders: the ways to do a job."""

from dataclasses import dataclass

from benchmark.process import CUDA

CIFAR10 = ["data=image_folder", "partition=iid", "clients.count=100", "clients.per_round=10"]
JOBS = {
    "digits, MLP, 100 clients": [
        *["partition=iid", "clients.count=100", "clients.per_round=100", "local.batch_size=16"],
    ],
    "CIFAR-10, conv2cifar, 10 clients": [
        *[*CIFAR10, "model=conv2cifar", "local.batch_size=64", "local.epochs=1"],
    ],
}
if CUDA:
    JOBS["CIFAR-10, resnet18 with GroupNorm, 10 clients"] = [
        *[*CIFAR10, "model=resnet18", "model.norm=group", "local.batch_size=64", "local.epochs=1"],
    ]


@dataclass(frozen=True)
class Contender:
    """One way to do a job: config ``overrides``, ``processes``, and ``threads`` per process."""

    name: str
    overrides: tuple[str, ...] = ()
    processes: int = 1
    threads: int = 2


RAW = "+raw=true"
"""Not an override: stands for the hand-written loop."""

PLAIN = ("engine=serial", "engine.channels_last=false")
CHANNELS_LAST = ("engine=serial", "engine.channels_last=true")
BF16 = (*CHANNELS_LAST, "engine.precision=bf16-mixed")
VECTORIZED = (*PLAIN, "engine=vectorized")
CONTENDERS = [
    Contender("raw loop", (*PLAIN, RAW)),  # first: the others are compared with it
    Contender("serial", PLAIN),
    Contender("serial, channels_last", CHANNELS_LAST),
    Contender("serial, bf16-mixed", BF16),
    Contender("serial, compiled", (*CHANNELS_LAST, "engine.compile=true")),
    Contender("vectorized", VECTORIZED),
    Contender("trainer", (*CHANNELS_LAST, "engine=trainer")),
]
if CUDA:
    CONTENDERS += [
        Contender("vectorized, bf16-mixed", (*VECTORIZED, "engine.precision=bf16-mixed")),
        Contender("vectorized, compiled", (*VECTORIZED, "engine.compile=true")),
    ]
else:
    CONTENDERS += [
        Contender("serial, 1 thread", CHANNELS_LAST, threads=1),
        Contender("serial, 2 processes", CHANNELS_LAST, processes=2, threads=1),
        Contender("vectorized, 2 processes", VECTORIZED, processes=2, threads=1),
    ]

PROCESSES = [each for each in CONTENDERS if each.threads == 1 and each.overrides == CHANNELS_LAST]
"""Contenders with one process and with two, of one thread each; the first has one process."""

TARGETS = {
    ("CIFAR-10, conv2cifar, 10 clients", "serial, channels_last"): 0.85,
    ("CIFAR-10, conv2cifar, 10 clients", "serial, 2 processes"): 0.75,
    ("digits, MLP, 100 clients", "vectorized"): 0.25,
}
"""(job, contender) -> the ratio to the raw loop that it should not exceed."""


def select_jobs(images: str | None) -> dict[str, list[str]]:
    """The jobs that can run; jobs on CIFAR-10 can run only if its folder ``images`` is given."""
    return {
        name: [*overrides, f"data.root={images}"] if "CIFAR" in name else overrides
        for name, overrides in JOBS.items()
        if images or "CIFAR" not in name
    }
