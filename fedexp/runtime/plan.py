"""Checks a config, builds what needs no data, and loads the data.

Errors in the config are found before data is decoded.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from fedexp.config.build import build
from fedexp.config.schema import Config
from fedexp.core.compatibility import KEEPS_MOMENTUM, SECOND_DERIVATIVES, check_compatible
from fedexp.core.description import Description
from fedexp.core.local_optimizer import LocalOptimizer
from fedexp.core.part import Part
from fedexp.core.randomness import seeded
from fedexp.core.sockets import Aggregator, Head, Loss, Personalization, Regularizer
from fedexp.data.configured_partition import SUPPLIED as PARTITION_SUPPLIED
from fedexp.data.configured_partition import partition_indices
from fedexp.data.dataset import Dataset, Describer, Source
from fedexp.data.drawn import DrawnData, DrawnSource
from fedexp.data.federated import FederatedData
from fedexp.data.split import class_counts, match, stratified
from fedexp.data.user_split import match_users, validation_split
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.models.configured import configure_head, configured
from fedexp.models.shape import feature_dim, for_inputs, outline
from fedexp.runtime.measured import check_objective, check_test_classes, check_without_global
from fedexp.runtime.on_demand import check_on_demand
from fedexp.runtime.token_targets import check_tokens
from fedexp.samplers.base import Sampler
from fedexp.tracking.follow import check_trackers
from fedexp.tracking.named_classes import check_names

LOGGER = logging.getLogger(__name__)
ENGINE_SUPPLIED = ("resources",)


class Compiled(Part):
    """``engine.compile=true``, as a component for ``check_compatible``."""

    forbids = MappingProxyType(
        {
            SECOND_DERIVATIVES: "engine.compile=true: compiled code has no second derivatives, "
            "which this {socket} needs"
        }
    )


class KeptMomentum(Part):
    """A momentum with ``local.keep_optimizer=true``, as a component for ``check_compatible``."""

    traits = frozenset({KEEPS_MOMENTUM})


class Backbone(Part):
    """A backbone, as a component for ``check_compatible``.

    Args:
        network: it may have an attribute ``needs``, as a part has.
    """

    def __init__(self, network: nn.Module) -> None:
        self.needs = getattr(network, "needs", {})


@dataclass(frozen=True)
class Sockets:
    """The method: one part in each socket."""

    head: Head
    loss: Loss
    regularizer: Regularizer
    personalization: Personalization
    sampler: Sampler
    aggregator: Aggregator

    def by_name(self) -> dict[str, Part]:
        """Socket -> part."""
        return dict(vars(self))


@dataclass(frozen=True)
class Plan:
    """A checked config and what can be built from it without data.

    Attributes:
        config: the checked config.
        source: the dataset's reader, or what draws its clients.
        description: shape and names of the dataset.
        backbone: builds the backbone for an ``input_shape``.
        feature_dim: d, the width of its features.
        sockets: the method.
        optimizer: makes the local optimizer of a round.
        faults: the injected faults.
    """

    config: Config
    source: Describer
    description: Description
    backbone: Callable[..., nn.Module]
    feature_dim: int
    sockets: Sockets
    optimizer: LocalOptimizer
    faults: Faults


def plan(config: Config) -> Plan:
    """Check the whole config. Raises InputError in one line."""
    check_objective(config)
    check_trackers(config.tracking.trackers)
    others = ("loss", "regularizer", "personalization", "sampler", "aggregator")
    parts = {name: build(name, getattr(config, name)) for name in others}
    faults: Faults = build("faults", config.faults)
    optimizer = LocalOptimizer(
        config.optimizer.node, config.schedule, config.optimizer.round_decay, config.rounds
    )
    _check_engine(config)
    partition = build("partition", config.partition.node, supplied=PARTITION_SUPPLIED)
    _check_initial_weights(config)
    model = build("model", config.model.node, supplied=("input_shape", "vocabulary", "per_token"))
    head = build("head", config.head, supplied=("feature_dim", "num_classes"))
    source: Describer = build("data", config.data.node)
    description = _description(config, source, partition.func)
    model = configured(for_inputs(model, description), config.model)
    width = feature_dim(model, description.input_shape, description.per_token)

    with seeded(config.seed, "head"):
        parts["head"] = head(feature_dim=width, num_classes=description.num_classes)
        configure_head(parts["head"], config.model)
    sockets = Sockets(**parts)
    if description.per_token:
        check_tokens(config, description, partition.func, sockets.by_name() | {"faults": faults})
    sockets.personalization.check(sockets.head, sockets.loss)
    settings: dict[str, Part] = {"engine.compile": Compiled()} if config.engine.compile else {}
    if config.local.keep_optimizer and config.optimizer.node.get("momentum"):
        settings["local.keep_optimizer"] = KeptMomentum()
    backbone = outline(model, description.input_shape)
    check_compatible(sockets.by_name() | settings | {"model": Backbone(backbone)}, LOGGER)
    with seeded(config.seed, "personalization"):
        sockets.personalization.create(width, description.num_classes, parts["head"])
    if not sockets.personalization.has_global:
        check_without_global(config)
    _check_trained(config, sockets, backbone)
    return Plan(config, source, description, model, width, sockets, optimizer, faults)


def load_data(config: Config, source: Describer, device: torch.device) -> FederatedData:
    """Load the dataset, partition it, and hold out what ``data.validation`` asks for.

    Test splits follow the partition, so they are the same with and without validation data. Of
    clients that are drawn on demand, only some are drawn here.
    """
    if isinstance(source, DrawnSource):
        return DrawnData(source, config.clients.count, config.seed, device)
    assert isinstance(source, Source)
    cache = config.data.cache.expanduser()
    dataset = source.load(cache)
    if config.data.subset is not None:
        kept = stratified(dataset.train.labels.numpy(), config.data.subset, config.seed)
        dataset = Dataset(
            dataset.description, dataset.train.take(kept), dataset.test, dataset.mean, dataset.std
        )
    labels = dataset.train.labels.numpy()
    clients = partition_indices(
        config.partition.node,
        labels,
        dataset.train.users,
        config.clients.count,
        config.seed,
        cache,
        config.partition.long_tail,
    )
    counts = class_counts(labels, clients, dataset.description.num_classes)
    if dataset.description.unseen_classes:  # no client's classes
        tests = [np.empty(0, dtype=np.int64)] * len(clients)
    elif config.partition.test_split == "users":
        dataset, tests = match_users(dataset, clients, config.seed)
    else:
        tests = match(dataset.test.labels.numpy(), counts, config.seed)
    train, validation = validation_split(
        dataset.train, clients, config.data.validation, config.seed
    )
    holders = sum(len(index) > 0 for index in train)
    if holders < len(train):
        LOGGER.warning(
            "%d of %d clients have data; the others are never chosen, so that %d take part a round",
            holders,
            len(train),
            min(holders, config.clients.per_round),
        )
    return FederatedData(
        dataset, train, tests, config.data.augment, config.seed, device, validation
    )


def _description(config: Config, source: Describer, partition: object) -> Description:
    """Shape and names of the dataset. Raises InputError if the config asks for what it has not.

    ``partition`` is the function of the partition.
    """
    if isinstance(source, DrawnSource):
        check_on_demand(config, partition)
    description = source.describe()
    check_test_classes(config, description)
    check_names(config.tracking, description)
    if config.data.augment != "none" and len(description.input_shape) != 3:
        kind = "token sequences" if description.vocabulary else "flat"
        raise InputError(
            f"data.augment={config.data.augment}: is for images; these inputs are {kind}; use none"
        )
    return description


def _check_engine(config: Config) -> None:
    """Raise InputError if the engine's config is invalid or it cannot run in several processes."""
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)
    if config.engine.processes > 1 and not engine.func.shares_cohort:
        raise InputError(
            f"engine.devices={config.engine.devices} engine.num_nodes={config.engine.num_nodes}: "
            "this engine trains in one process; take engine=serial or engine=vectorized"
        )


def _check_trained(config: Config, sockets: Sockets, backbone: nn.Module) -> None:
    """Raise InputError if a phase of local training has no parameter to train."""
    personalization = sockets.personalization
    trained = []
    for socket, part in {"backbone": backbone, **sockets.by_name()}.items():
        if isinstance(part, nn.Module):
            named = part.named_parameters(prefix=socket)
            trained += [name for name, value in named if value.requires_grad]
    epochs = config.local.epochs
    phases = (personalization.phases, personalization.personal_phases)
    for phase in (*(each for of in phases for each in of(epochs)), *personalization.tuning()):
        if not any(name.startswith(phase.trainable) for name in trained):
            layers = " or ".join(prefix.rstrip(".") or "model" for prefix in phase.trainable)
            raise InputError(
                f"model.train={config.model.train}: nothing of the {layers} trains, which a phase "
                "of local training needs; choose other layers, another model or personalization"
            )


def _check_initial_weights(config: Config) -> None:
    """Raise InputError if ``model.init`` would draw weights again that come from a file."""
    weights, init = config.model.node.get("weights"), config.model.init
    if weights is not None and init != "default":
        raise InputError(
            f"model.init={init}: would replace model.weights={weights}; should be default"
        )
