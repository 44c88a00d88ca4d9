"""Keys without effect that follow from several components of a run."""

from collections.abc import Iterator

from torch import nn

from fedexp.compression.compressor import Compressor
from fedexp.config.compatibility.declaration import Declaration
from fedexp.config.compatibility.traits import ACTS_ON_HEAD, ACTS_ON_SHARED, DRAWS_REPEATEDLY
from fedexp.config.schema import Config
from fedexp.core.part import Part
from fedexp.core.sockets import Head, Loss, Personalization
from fedexp.engines.local_optimizer import LocalOptimizer
from fedexp.models.init import drawn_layers
from fedexp.rounding import rounded_down


def declared_unread(
    config: Config,
    backbone: nn.Module,
    parts: dict[str, Part],
    optimizer: LocalOptimizer,
    upload: Compressor,
    download: Compressor,
) -> Iterator[Declaration]:
    """Declare the keys without effect.

    Args:
        config: the run's config.
        backbone: the backbone; it may be on the meta device.
        parts: socket -> part.
        optimizer: the local optimizer.
        upload: compresses what clients send.
        download: compresses what the server sends.
    """
    head, loss, personalization = parts["head"], parts["loss"], parts["personalization"]
    assert isinstance(head, Head)
    assert isinstance(loss, Loss)
    assert isinstance(personalization, Personalization)
    name = type(personalization).__name__
    if not _shares_weights(backbone, parts, personalization):
        why = f"because no weights are shared with this personalization ({name})"
        keys = {"aggregator": True, "compression": not upload.is_none}
        keys |= {"download": not download.is_none}
        keys |= {n: True for n, part in parts.items() if ACTS_ON_SHARED in part.traits}
        yield Declaration("personalization", unread={k: why for k, used in keys.items() if used})
    yield from _of_phases(config, personalization)
    yield from _of_personal_models(loss, personalization)
    if ACTS_ON_HEAD in parts["regularizer"].traits and not _trains_head(personalization):
        why = f"because this personalization ({name}) trains no shared head"
        yield Declaration("personalization", unread={"regularizer": why})
    clients, part = config.clients, parts["sampler"]
    training = clients.count - rounded_down(clients.held_out, clients.count)
    if clients.per_round == training and DRAWS_REPEATEDLY not in part.traits:
        why = f"because clients.per_round={clients.per_round} takes all clients in every round"
        yield Declaration("sampler", unread={"sampler": why})
    init, by_file = config.model.init, config.model.start_from is not None
    networks: list[nn.Module] = [head] if by_file else [head, backbone]
    if init != "default" and not any(drawn_layers(each, init) for each in networks):
        why = "because no layer gets its initial weights by this rule"
        yield Declaration("model", unread={"model.init": why})
    if not any(weight.dim() == 4 for weight in backbone.parameters()):
        why = "because this model has no two-dimensional convolutions"
        yield Declaration("engine", unread={"engine.channels_last": why})
    if config.engine.processes == 1:
        yield Declaration("engine", unread={"engine.balance": "in a run of one process"})
    if config.local.keep_optimizer and not optimizer.has_state:
        why = "because this optimizer has no state; use for example optimizer.momentum=0.9"
        yield Declaration("optimizer", unread={"local.keep_optimizer": why})
    if optimizer.is_constant:
        why = f"because the learning rate is the same in all {config.rounds} rounds"
        yield Declaration("schedule", unread=dict.fromkeys(_schedule_keys(config), why))


def _of_phases(config: Config, personalization: Personalization) -> Iterator[Declaration]:
    """Declare the settings of the optimizer that no phase of training uses."""
    phases = [*personalization.phases(1), *personalization.personal_phases(1)]
    phases += personalization.tuning()
    name = type(personalization).__name__
    if {phase.plain_sgd for phase in phases} == {True}:
        keys = [f"optimizer.{n}" for n in config.optimizer.node if n not in ("_target_", "lr")]
        why = f"because this personalization ({name}) trains by plain SGD"
        unread = dict.fromkeys([*keys, "local.keep_optimizer"], why)
        yield Declaration("personalization", unread=unread)
    if {phase.clipped for phase in phases} == {False}:
        why = f"because this personalization ({name}) does not clip"
        yield Declaration("personalization", unread={"local.grad_clip": why})


def _of_personal_models(loss: Loss, personalization: Personalization) -> Iterator[Declaration]:
    """Declare the loss's arguments for personal models if no phase trains such a model."""
    phases = [*personalization.personal_phases(1), *personalization.tuning()]
    if not any(phase.epochs for phase in phases):
        why = "without a personal model that is tuned or trained separately"
        yield Declaration("loss", unread={f"loss.{key}": why for key in loss.of_personal})


def _trains_head(personalization: Personalization) -> bool:
    """Whether a phase of the shared model's training trains parameters of the head."""
    names = [name for phase in personalization.phases(1) for name in phase.trainable]
    return any(name.startswith("head.") or "head.".startswith(name) for name in names)


def _shares_weights(
    backbone: nn.Module, parts: dict[str, Part], personalization: Personalization
) -> bool:
    """Whether the personalization shares any weight of the model."""
    networks = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    whole = nn.ModuleDict({"backbone": backbone, **networks})
    trained = (name for name, weight in whole.named_parameters() if weight.requires_grad)
    return any(map(personalization.shared, trained))


def _schedule_keys(config: Config) -> Iterator[str]:
    """The schedule's keys; the group itself unless it is the schedule with a constant rate."""
    node = dict(config.schedule)
    if not str(node.pop("_target_")).endswith(".ConstantLR"):
        yield "schedule"
    yield from (f"schedule.{name}" for name in node)
