"""The runs that must be the same on the pretended device: options, engines and their mixtures."""

import json

from generate.measured import path
from generate.options import Option, all_options
from generate.run_plan import overrides, reason_for_none

from support.federations import FEW_STEPS
from support.partner_options import ROBUST_COHORTS
from support.twins import without_twins

_ENGINES = ("engine=serial", "engine=vectorized", "engine=trainer")
_BF16 = "engine.precision=bf16-mixed"
_IN_ALL_ENGINES = ("fedavg", "fednh", "fedgela", "fedsc", "scaffold", "fedrep")
_WITH_BUFFER = ("fedavg", "fednh", "fedprox", "moon", "fedrep")

_SHORTER: dict[str, list[str]] = {
    "algorithm=creff": ["head.match_steps=2"],
    "algorithm=ccvr": ["head.epochs=2"],
    "algorithm=fedgen": ["loss.steps=2"],
    "head=calibrated": ["head.epochs=2"],
    "head=retrained": ["head.match_steps=2"],
    "loss=generative": ["loss.steps=2"],
    **dict.fromkeys(("algorithm=fedptr", "algorithm=fedptr_s"), FEW_STEPS),
    **dict.fromkeys(("algorithm=fedprox_synthetic", "regularizer=trajectory"), FEW_STEPS),
    "regularizer=proximal_synthetic": FEW_STEPS,
}
"""Option -> overrides that shorten its work."""

_LARGER = {
    "clients.per_round=20": ["clients.count=20", "data.subset=600"],
    "aggregator.warmup=10": ["aggregator.warmup=1"],
    "coordination=buffered": ["coordination.buffer=2"],
    "data=synthetic": ["data.subset=null"],
}
"""Override of the documentation's run -> further ones for a run of two rounds."""


def _is_refused(option: Option) -> bool:
    """Whether the documentation says that fedexp refuses the run, as a model of larger images."""
    return "not_measured" in json.loads(path(option.group, option.name).read_text())


def _of_options() -> dict[str, list[str]]:
    """Every option that has a run in the documentation, as in this run but for its size.

    Of several options with the same config, as ``algorithm=moon`` and ``loss=moon``, it has one.
    """
    found = {}
    for option in all_options():
        if reason_for_none(option) or _is_refused(option):
            continue
        words = [*overrides(option), *_SHORTER.get(option.override, [])]
        words += ROBUST_COHORTS.get(option.override, [])
        words += [more for word in words for more in _LARGER.get(word, [])]
        found[option.override] = [*words, "measure.personal.every=1"]
    return without_twins(found)


def _of_engines() -> dict[str, list[str]]:
    """The other engines, and all with bf16; so few clients already train one after another."""
    names = [f"algorithm={name}" for name in _IN_ALL_ENGINES]
    ways = [[engine] for engine in _ENGINES[1:]] + [[engine, _BF16] for engine in _ENGINES]
    return {" ".join((name, *way)): [name, *way] for name in names for way in ways}


def _others() -> dict[str, list[str]]:
    """Buffered coordination, compressed downloads, clipping, kept optimizers, own part, faults."""
    buffered = ["coordination=buffered", "coordination.buffer=2", "system=phones"]
    buffered += ["clients.per_round=4", "aggregator=uniform"]
    found = {f"buffered {name}": [f"algorithm={name}", *buffered] for name in _WITH_BUFFER}
    for name in ("topk", "qsgd", "powersgd"):
        found[f"download {name}"] = ["algorithm=fedavg", f"compression@download={name}"]
    found["clipped"] = ["algorithm=scaffold", "local.grad_clip=0.5"]
    found["kept optimizer"] = ["algorithm=fedavg", "local.keep_optimizer=true"]
    loss = "loss._target_=support.device_breakers.SetInBegin"
    found["attribute"] = ["algorithm=fedavg", loss, "engine=vectorized"]
    found["faults"] = ["algorithm=fedavg", "faults=unreliable", "faults.nan=0.5"]
    return found


CASES = {**_of_options(), **_of_engines(), **_others()}
"""Name -> overrides."""
