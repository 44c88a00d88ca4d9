"""Build and check the measures that a config names."""

from collections.abc import Collection, Iterator, Mapping

from fedexp.config.build import Node, build
from fedexp.config.compatibility.declaration import Declaration, needed
from fedexp.config.compatibility.traits import ASYNCHRONOUS, OWN_LABELLING, SIMULATED_TIME, Need
from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.measures.clock import Clock
from fedexp.measures.held_out import HeldOut
from fedexp.measures.measure import Measure, Outline
from fedexp.measures.panel import headlines, remembers
from fedexp.measures.personal import Personal


def build_measures(nodes: Mapping[str, Node | None]) -> dict[str, Measure]:
    """Build the measures of ``config.measure``: name -> measure. Names with null are left out.

    Raises InputError for a wrong class or value.
    """
    return {name: build(f"measure.{name}", node, Measure) for name, node in nodes.items() if node}


def declared_measures(measures: Mapping[str, Measure], dataset: str) -> Iterator[Declaration]:
    """Yield a declaration of each measure's needs and keys; error messages name the ``dataset``."""
    for name, measure in measures.items():
        key, needs = f"measure.{name}", dict[str, str]()
        for need in sorted(measure.needs):
            lacking = "the method" if need is Need.GLOBAL_MODEL else dataset
            needs |= needed(key, need, lacking, f"leave it out by ~{key}")
        unread = {key: measure.idle} if measure.idle else {}
        yield Declaration(key, needs=needs, unread=unread, reads=measure.reads)


def check_measures(
    measures: Mapping[str, Measure],
    config: Config,
    about: Description,
    traits: frozenset[str],
    tunes_best: bool,
) -> None:
    """Check each measure's keys, and that ``objective`` is one of the measures' headlines.

    Args:
        measures: name -> measure.
        config: the run's config.
        about: names and shape of the dataset.
        traits: the traits of all components.
        tunes_best: whether the method tunes personal models from the best global model.

    Raises:
        InputError: a measure's key does not fit the run, ``objective`` is not a headline, or
            nothing measures the accuracy that has a target or finds the best global model that is
            tuned.
    """
    outline = Outline(
        about,
        config.clients.count,
        config.rounds,
        frozenset(need for need in Need if need in traits),
        validates=config.data.validation > 0,
        own_tasks=bool(config.partition.shift.kinds) or OWN_LABELLING in traits,
        holds_out=config.clients.held_out > 0,
        simulates_time=SIMULATED_TIME in traits,
        is_asynchronous=ASYNCHRONOUS in traits,
    )
    for measure in measures.values():
        measure.check(outline)
    known = headlines(measures)
    _check_times(measures, known)
    if config.objective not in known:
        lacking = []
        of_personal = config.objective.startswith(("personal/", "validation/personal_"))
        if of_personal and not any(isinstance(each, Personal) for each in measures.values()):
            lacking.append("measure.personal")
        if config.objective.startswith("validation/") and not outline.validates:
            lacking.append("data.validation=0.1")
        remedy = f" without {' and '.join(lacking)}" if lacking else ""
        raise InputError(
            f"objective={config.objective}: is not measured{remedy}; should be one of "
            f"{', '.join(known)}"
        )
    if tunes_best:
        _check_best(measures, outline, known)


def _check_times(measures: Mapping[str, Measure], known: Collection[str]) -> None:
    """Raise InputError if nothing measures an accuracy to which the time is a headline."""
    for measure in measures.values():
        if isinstance(measure, Clock) and measure.headlines and "global/accuracy" not in known:
            raise InputError(
                f"measure.clock.targets={measure.targets}: needs global/accuracy, which this run "
                "does not measure"
            )


def _check_best(measures: Mapping[str, Measure], outline: Outline, known: Collection[str]) -> None:
    """Raise InputError if models tuned from the best global model are scored, but none is found."""
    of_newcomers = outline.holds_out and any(isinstance(m, HeldOut) for m in measures.values())
    if remembers(measures) == "off" and not of_newcomers:
        return
    kind = "validation" if outline.validates else "global"
    finds = "the best global model, from which personal models are tuned"
    if "best" not in measures:
        raise InputError(f"measure.best: is missing; it finds {finds}")
    if f"{kind}/accuracy" not in known:
        remedy = "; without it data.validation should be 0" if outline.validates else ""
        raise InputError(
            f"measure.{kind}: is missing; by {kind}/accuracy measure.best finds {finds}{remedy}"
        )
