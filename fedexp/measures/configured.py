"""Build and check the measures that a config names."""

from collections.abc import Iterator, Mapping

from fedexp.config.build import Node, build
from fedexp.config.compatibility.declaration import Declaration, needed
from fedexp.config.compatibility.traits import ASYNCHRONOUS, SIMULATED_TIME, Need
from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.measures.measure import Measure, Outline
from fedexp.measures.panel import headlines


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
) -> None:
    """Check each measure's keys, and that ``objective`` is one of the measures' headlines.

    Args:
        measures: name -> measure.
        config: the run's config.
        about: names and shape of the dataset.
        traits: the traits of all components.

    Raises:
        InputError: a measure's key does not fit the run, or ``objective`` is not a headline.
    """
    outline = Outline(
        about,
        config.clients.count,
        config.rounds,
        frozenset(need for need in Need if need in traits),
        validates=config.data.validation > 0,
        shifts=bool(config.partition.shift.kinds),
        holds_out=config.clients.held_out > 0,
        simulates_time=SIMULATED_TIME in traits,
        is_asynchronous=ASYNCHRONOUS in traits,
    )
    for measure in measures.values():
        measure.check(outline)
    known = headlines(measures)
    if config.objective not in known:
        held_out = config.objective.startswith("validation/") and not outline.validates
        remedy = " without data.validation=0.1" if held_out else ""
        raise InputError(
            f"objective={config.objective}: is not measured{remedy}; should be one of "
            f"{', '.join(known)}"
        )
