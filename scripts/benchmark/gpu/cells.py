"""Cells of the papers' tables, by what they tell for a minute of a GPU.

They train in bf16, unlike the papers, so their scores are a first look at a table.
"""

from collections.abc import Iterator
from typing import Any

import fedexp
from benchmark.gpu.place import Place

FEDNH = ["experiment=fednh/cifar10_dir03", "measure.global.every=10"]
CELLS = {
    "fednh": [*FEDNH, "algorithm=fednh"],  # published: 0.6901
    "fedavg": [*FEDNH, "algorithm=fedavg"],  # published: 0.664
    "hics": ["experiment=hics/cifar10_setting2"],
    "fedsc": ["experiment=fedsc/cifar10_dir02", "algorithm=fedsc"],
    "fedgela": ["experiment=fedgela/cifar10_p10c2", "algorithm=fedgela"],
}
TINY = [
    "data.subset=400",
    "rounds=2",
    "model=simple_cnn",
    "clients.count=10",
    "clients.per_round=2",
]


def run(place: Place, before: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Train until the time is over; the next call goes on from the last checkpoint."""
    if place.images is None:
        yield {"unfinished": "needs --images, because scores of random images say nothing"}
        return
    folder = place.folder / f"run_{name}"
    words = [*CELLS[name], *place.cifar10, *place.on_device, *(TINY if place.tiny else [])]
    words += [f"limits.minutes={max(0.1, (place.seconds - 20) / 60):.2f}", "resume=auto"]
    words += [
        "tracking.wandb.mode=disabled",
        "tracking.progress=false",
        "engine.precision=bf16-mixed",
    ]
    result = fedexp.run([*words, f"hydra.run.dir={folder}"])
    rounds = int(result.metrics["round"].iloc[-1])
    final = {name: values["final"] for name, values in result.summary["metrics"].items()}
    found = {"rounds": rounds, "final": final}
    yield found | ({"unfinished": result.stopped} if result.stopped else {})
