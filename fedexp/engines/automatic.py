"""``engine=auto``: chooses the engine that is expected to be faster, without a trial."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fedexp.engines.base import Engine, Work
from fedexp.engines.serial import Serial
from fedexp.engines.vectorized import Vectorized

_FEWEST_CLIENTS = 8
"""Clients that one process must train in a round, so that a stack pays."""

_MOST_FLOPS = 4_000_000
"""Operations in the forward pass of a step, above which a stack does not pay.

The table has a column for each cohort of K clients: the CPU seconds of a round with
``engine=vectorized``, divided by those with ``engine=serial``. ``python scripts/bench.py engines``
repeats it.

| K | 3 | 5 | 8 | 10 | 20 | 50 | 10, iid | 10, 5.8 MFLOP | 20, 5.8 MFLOP |
|---|---|---|---|---|---|---|---|---|---|
| ratio | 1.33 | 0.94 | 0.79 | 0.71 | 0.50 | 0.40 | 0.43 | 1.17 | 0.94 |

All cells but the last two have 0.5 MFLOP. With convolutions, stacks gained nothing on a CPU
(``scripts/results/costs.md``).
"""

_FEWEST_ON_GPU = 3
"""The same on a GPU, where ResNet-18 gained, too (``scripts/results/gpu.md``)."""

_KNOWN = ("fedexp", "torch", "torchvision")
"""Packages whose layers and parts are tested with ``engine=vectorized``, or declare conflicts."""


class Automatic(Engine):
    """``Vectorized`` where stacks are expected to be faster and are allowed, else ``Serial``.

    The choice depends on the cohort, the model, the parts, and whether a GPU trains. So it is the
    same after a resume, whatever the machine's load.
    """

    @classmethod
    def for_work(cls, engine: partial[Any], work: Work) -> tuple[partial[Any], str]:
        """Choose ``Serial`` or ``Vectorized``, and say why."""
        for reason in _against_stacks(work):
            return partial(Serial), f"serial, because {reason}"
        vectorized = partial(Vectorized, clients_per_chunk=None)
        small = "" if work.on_gpu else "small "
        return vectorized, f"vectorized, because {work.clients} {small}clients train at once"


def _against_stacks(work: Work) -> Iterator[str]:
    """The reasons why the clients are not stacked, the cheapest to find first."""
    fewest = _FEWEST_ON_GPU if work.on_gpu else _FEWEST_CLIENTS
    if work.clients < fewest:
        yield f"fewer than {fewest} clients train at once"
    if work.compiles:
        yield "a stack would be compiled anew for each number of clients"
    unsuited = [*Vectorized.forbids, *Vectorized.discourages]
    for each in work.declarations:
        yield from (f"{each.key} {trait}" for trait in unsuited if trait in each.traits)
    given = {trait for each in work.declarations for trait in each.traits}
    yield from (f"nothing {trait}" for trait in Vectorized.needs if trait not in given)
    layers = {f"model.{n}".rstrip("."): layer for n, layer in work.backbone.named_modules()}
    for place, component in {**work.components, **layers}.items():
        kind = type(component)
        if kind.__module__.partition(".")[0] not in _KNOWN:
            yield f"{place} ({kind.__name__}) is not known to allow stacks; check_part tests it"
    if not work.on_gpu and (flops := work.flops()) > _MOST_FLOPS:
        yield f"a step has {flops / 1e6:.3g} MFLOP, more than {_MOST_FLOPS / 1e6:g}"
