"""Checks a config and builds every object that needs no data.

Errors in the config are found before data is decoded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import nn

from fedexp.compression.compressor import Compressor
from fedexp.config.build import build
from fedexp.config.compatibility.declaration import Declaration, check, declared, needed
from fedexp.config.compatibility.settings import declared_data_settings, declared_settings
from fedexp.config.compatibility.traits import (
    CHOOSES_START,
    DIVIDES_STEPS,
    EXPECTS_CURRENT,
    LOCAL_MOMENTUM,
    OFFSET_START,
    OTHER_GRADIENT,
    OTHER_START,
    SENDS_KEPT,
    SEVERAL_PROCESSES,
    TAKES_MORE,
    TAKES_STALE,
    Need,
)
from fedexp.config.compatibility.unread import unread_keys
from fedexp.config.constructed import construct
from fedexp.config.schema import Config
from fedexp.coordination.base import Coordination
from fedexp.core import results
from fedexp.core.description import Description
from fedexp.core.part import Part, has_server_half, hooks_beside_merge
from fedexp.core.randomness import seeded
from fedexp.core.sockets import (
    Aggregator,
    Head,
    LocalGradient,
    Network,
    Personalization,
    Phase,
    Sockets,
)
from fedexp.data.configured_partition import declared_partition
from fedexp.data.dataset import Describer
from fedexp.engines.base import Engine, Work
from fedexp.engines.local_optimizer import LocalOptimizer
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.measures.configured import build_measures, check_measures, declared_measures
from fedexp.measures.measure import Measure
from fedexp.models.configured import configure_head, configured, several
from fedexp.models.declared_layers import declared_layers
from fedexp.models.shape import feature_dim, for_inputs, forward_flops, is_own, outline
from fedexp.models.trained import check_trained
from fedexp.runtime import early as early_checks
from fedexp.runtime.early import Early
from fedexp.runtime.without_effect import declared_unread
from fedexp.samplers.base import Sampler
from fedexp.system.availability import Availability
from fedexp.system.source import DeviceSource
from fedexp.system.system import System
from fedexp.tracking.follow import check_trackers

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A checked config, and the objects that can be built from it without data.

    Attributes:
        config: the checked config.
        source: reads the dataset, or draws its clients.
        description: shape and names of the dataset.
        backbone: builds the backbone for an ``input_shape``.
        head: builds a head with new initial weights.
        feature_dim: d, the width of the backbone's features.
        sockets: the method.
        optimizer: makes the local optimizer of a round.
        faults: the injected faults.
        system: simulated devices and time.
        upload: compresses what clients send.
        download: compresses what the server sends.
        coordination: decides when clients start and which updates a server step takes.
        engine: makes the engine from its resources.
        why_engine: which engine ``engine=auto`` has chosen and why; empty if it was configured.
        measures: name -> measure.
        unread: key that has no effect in this run -> why; see
            ``fedexp.config.compatibility.unread``.
    """

    config: Config
    source: Describer
    description: Description
    backbone: Callable[..., nn.Module]
    head: Callable[[], Head]
    feature_dim: int
    sockets: Sockets[Sampler]
    optimizer: LocalOptimizer
    faults: Faults
    system: System
    upload: Compressor
    download: Compressor
    coordination: Coordination
    engine: partial[Engine]
    measures: dict[str, Measure]
    why_engine: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)


def plan(config: Config, early: Early | None = None) -> Plan:
    """Build and check all objects that need no data. Raises InputError in one line.

    ``early`` has the objects that the early checks built; None to build them here.
    """
    check_trackers(config.tracking.trackers)
    settings = list(declared_settings(config))
    check(settings, LOGGER)  # before a model looks for its weights
    planned = _build(config, early or early_checks.check(config))
    backbone = outline(planned.backbone, planned.description.input_shape)
    found = list(_declarations(planned, settings, backbone))
    check(found, LOGGER)
    _finish(planned, backbone, frozenset().union(*(each.traits for each in found)))
    kind = cast(type[Engine], planned.engine.func)
    engine, why = kind.for_work(planned.engine, _work(planned, backbone, found))
    planned = replace(planned, engine=engine, why_engine=why)
    return replace(planned, unread=_unread(planned, settings, backbone))


def _build(config: Config, early: Early) -> Plan:
    """Build the objects. Raises InputError for a wrong value."""
    faults: Faults = build("faults", config.faults, Faults)
    system = _system(config)
    coordination = build("coordination", config.coordination, Coordination)
    coordination.check(config.clients.per_round, system)
    measures = build_measures(config.measure)
    engine = build("engine", config.engine.node, Engine, supplied=("resources",))
    head = build("head", config.head, Head, supplied=("feature_dim", "num_classes"))
    shapes = ("input_shape", "vocabulary", "per_token")
    model = build("model", config.model.node, nn.Module, supplied=shapes)
    about = early.description
    model = configured(for_inputs(model, about), config.model)
    width = feature_dim(model, about.input_shape, about.per_token)

    def new_head() -> Head:
        shapes = {"feature_dim": width, "num_classes": about.num_classes}
        made: Head = construct("head", head, Head, shapes)
        configure_head(made, config.model)
        return made

    with seeded(config.seed, "head"):
        parts = {**early.parts, "head": new_head()}
    if is_own(model) and width == about.num_classes and parts["head"].state_dict():
        LOGGER.warning(
            "model: the network gives %d outputs for %d classes; if they are logits, take "
            "head=identity",
            *(width, width),
        )
    upload, download = early.compressors
    return Plan(
        config=config,
        source=early.source,
        description=about,
        backbone=several(model, parts["head"].backbones),
        head=new_head,
        feature_dim=width * parts["head"].backbones,
        sockets=Sockets(**parts),
        optimizer=early.optimizer,
        faults=faults,
        system=system,
        upload=upload,
        download=download,
        coordination=coordination,
        engine=engine,
        measures=measures,
    )


def _declarations(
    plan: Plan, settings: Sequence[Declaration], backbone: nn.Module
) -> Iterator[Declaration]:
    """The declarations of all components, in the order in which conflicts are reported.

    Args:
        plan: has the components.
        settings: the declarations of the config's settings.
        backbone: the backbone, if possible on PyTorch's meta device, where weights need no memory.
    """
    dataset = plan.description.name
    yield from _of_parts(plan.sockets, dataset)
    yield declared_partition(plan.config.partition.node, dataset)
    yield from settings
    yield from declared_data_settings(plan.config, dataset)
    yield declared("data", plan.source)
    yield declared("data", plan.description)
    yield declared("faults", plan.faults)
    yield declared("system", plan.system)
    yield from _of_upload(plan.upload)
    yield from _of_download(plan.download)
    yield declared("coordination", plan.coordination)
    yield declared("model", backbone)
    yield from declared_layers(backbone, plan.sockets.by_name())
    yield declared("optimizer", plan.optimizer)
    yield declared("engine", plan.engine.func)
    yield from declared_measures(plan.measures, dataset)
    for name, measure in plan.measures.items():
        yield from _of_reduction(f"measure.{name}", measure)


def _system(config: Config) -> System:
    """The simulated devices and time. Raises InputError."""
    source = build("system", config.system.node, DeviceSource)
    availability = build("availability", config.availability, Availability)
    system = System(source, availability, config.system, config.clients.per_round)
    system.check(config.clients.count)
    return system


def _work(plan: Plan, backbone: nn.Module, found: Sequence[Declaration]) -> Work:
    """The facts by which an engine may be chosen; ``found`` has all declarations."""
    config = plan.config
    shape, batch = plan.description.input_shape, config.local.batch_size
    # Of the clients that system.invite adds, none trains; see ``fedexp.engines.schedule``.
    cohort = plan.coordination.updates_per_step(config.clients.per_round)
    return Work(
        clients=-(-cohort // config.engine.processes),
        on_gpu=config.engine.device in ("auto", "cuda") and torch.cuda.is_available(),
        compiles=bool(config.engine.compile),
        flops=lambda: forward_flops(plan.backbone, shape, batch),
        backbone=backbone,
        components={**plan.sockets.by_name(), "faults": plan.faults},
        declarations=found,
    )


def _finish(plan: Plan, backbone: nn.Module, traits: frozenset[str]) -> None:
    """Make the parameters of loss and personalization; check ``model.train`` and the measures.

    ``traits`` has the traits of all components.
    """
    config, about, sockets = plan.config, plan.description, plan.sockets
    network = Network(backbone, sockets.head, plan.feature_dim, about.num_classes)
    with seeded(config.seed, "loss"):
        sockets.loss.create(network)
    with seeded(config.seed, "personalization"):
        sockets.personalization.create(network, sockets.loss)
    _check_phases(sockets.personalization)
    if DIVIDES_STEPS in traits:
        _check_optimizers(sockets.personalization, plan.optimizer)
    check_trained(config, backbone, sockets.by_name(), sockets.personalization)
    tunes_best = sockets.personalization.tunes == "best"
    check_measures(plan.measures, config, about, traits, tunes_best)


def _unread(plan: Plan, settings: Sequence[Declaration], backbone: nn.Module) -> Mapping[str, str]:
    """The keys that have no effect in this run -> why; the plan is finished."""
    parts = plan.sockets.by_name()
    several = declared_unread(
        plan.config, backbone, parts, plan.optimizer, plan.upload, plan.download
    )
    return unread_keys(
        plan.config.model_dump(), [*_declarations(plan, settings, backbone), *several]
    )


def _check_phases(personalization: Personalization) -> None:
    """Raise InputError if the phases of training are not a list or tuple of ``Phase``."""
    whose = "personalization", personalization
    results.sequence(personalization.phases(1), Phase, *whose, "phases(...)")
    results.sequence(personalization.personal_phases(1), Phase, *whose, "personal_phases(...)")
    results.sequence(personalization.tuning(), Phase, *whose, "tuning()")


def _check_optimizers(personalization: Personalization, optimizer: LocalOptimizer) -> None:
    """Raise InputError if phases take steps of different lengths: SGD with and without momentum."""
    kinds = {phase.plain_sgd for phase in personalization.phases(1)}
    if LOCAL_MOMENTUM in optimizer.traits and len(kinds) > 1:
        raise InputError(
            "personalization: one phase of training has SGD without momentum, another with it, but "
            "a part of this method divides by the length of steps; use optimizer.momentum=0"
        )


def _of_parts(sockets: Sockets[Sampler], dataset: str) -> Iterator[Declaration]:
    """The declarations of the parts; errors name the ``dataset``."""
    for socket, part in sockets.by_name().items():
        of_part = declared(socket, part)
        yield replace(of_part, traits=of_part.traits | traits_of_hooks(part))
        yield from _of_reduction(socket, part)
        if hooks := hooks_beside_merge(part):
            key = f"{socket} ({type(part).__name__}: {', '.join(hooks)})"
            yield Declaration(key, frozenset({TAKES_MORE}))
        if not part.takes_tokens:
            subject, advice = f"{socket} ({type(part).__name__})", f"take another {socket}"
            yield Declaration(socket, needs=needed(subject, Need.CLASS_LABELS, dataset, advice))
    if sockets.personalization.has_global:
        yield Declaration("personalization", frozenset({Need.GLOBAL_MODEL}))


def _of_reduction(socket: str, part: object) -> Iterator[Declaration]:
    """A declaration that forbids several processes, if hooks of ``Reducible`` are missing."""
    for base in (Aggregator, Measure):
        hooks = [name for name in ("contribution", "set_reduced") if isinstance(part, base)]
        lacks = [name for name in hooks if getattr(type(part), name) is getattr(base, name)]
        if lacks and (base is Aggregator or len(lacks) < len(hooks)):
            error = f"{results.named(socket, part)} has no {' and no '.join(lacks)}"
            message = f"{{other}}: {error}, which several processes need; should be one process"
            yield Declaration(socket, forbids={SEVERAL_PROCESSES: message})


def traits_of_hooks(part: Part) -> set[str]:
    """The traits that follow from the hooks that a part overrides."""
    found = {OTHER_START} if type(part).message_to is not Part.message_to else set()
    if isinstance(part, LocalGradient) and not part.is_plain:
        found.add(OTHER_GRADIENT)
    if isinstance(part, Personalization) and type(part).choose is not Personalization.choose:
        found |= {CHOOSES_START, OTHER_START}
    if has_server_half(part) and TAKES_STALE not in part.traits:
        found.add(EXPECTS_CURRENT)
    return found


def _of_upload(upload: Compressor) -> Iterator[Declaration]:
    """The declaration of uploads with error feedback: a difference should be a new step."""
    if upload.error_feedback:
        key = "compression.error_feedback"
        discourages = {
            SENDS_KEPT: f"{key}=true: what was not sent is added to the next update, but this "
            "{other} may send weights that a client kept, which contain it already; use "
            f"{key}=false",
            CHOOSES_START: f"{key}=true: what was not sent is added to the next update, but this "
            f"{{other}} may choose another model for that; use {key}=false",
        }
        yield Declaration("compression", discourages=discourages)


def _of_download(download: Compressor) -> Iterator[Declaration]:
    """The declaration of compressed downloads: all clients must start from the global weights."""
    if not download.is_none:
        error = (
            "compression@download: this {other} may start clients from other weights than the "
            "global ones, and only the difference of those is sent; should be none"
        )
        traits, discourages = set(), {}
        if download.error_feedback:
            traits = {OFFSET_START}
            discourages = {
                SENDS_KEPT: "download.error_feedback=true: what the client did not get is added to "
                "what it sends, but this {other} may send weights that a client kept, which do not "
                "lack it; use download.error_feedback=false"
            }
        forbids = {OTHER_START: error}
        yield Declaration("download", frozenset(traits), {}, forbids, discourages)
