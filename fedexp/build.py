"""From a checked config to a federation. What can be wrong is found before data is decoded."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn

from fedexp.aggregators.average import Average
from fedexp.aggregators.base import Aggregator
from fedexp.aggregators.private import Private
from fedexp.client import ClientModule
from fedexp.data.dataset import Dataset, Description, Source
from fedexp.data.federated import FederatedData
from fedexp.data.partition import SUPPLIED as PARTITION_SUPPLIED
from fedexp.data.partition import partition_indices
from fedexp.data.split import class_counts, match, stratified
from fedexp.engines.base import Resources
from fedexp.errors import InputError
from fedexp.evaluation.evaluator import Evaluator
from fedexp.evaluation.membership import MembershipAttack
from fedexp.faults.base import Faults
from fedexp.federation import Federation
from fedexp.functional import functional
from fedexp.heads.base import Head
from fedexp.layout import channels_last_pays, check_compiler
from fedexp.losses.base import Loss
from fedexp.memory import keep_freed_memory
from fedexp.messages import Message, Tensors
from fedexp.models.shape import feature_dim, trains_on_one
from fedexp.parts import Functional, Part, Setting
from fedexp.personalization.base import Personalization
from fedexp.placement import Placement
from fedexp.quarantine import Quarantine
from fedexp.randomness import key
from fedexp.ranks import ranks_of
from fedexp.regularizers.base import Regularizer
from fedexp.regularizers.trajectory import Trajectory
from fedexp.samplers.base import Sampler
from fedexp.samplers.random import Random
from fedexp.schema import Config, build
from fedexp.server import Server
from fedexp.store import ClientStore
from fedexp.tracking.pictures import Pictures
from fedexp.tracking.summary import HEADLINES
from fedexp.tracking.tracker import Tracker

LOGGER = logging.getLogger(__name__)
OPTIMIZER_SUPPLIED = ("parameters", "round")
ENGINE_SUPPLIED = ("resources",)


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
    """What a config asks for, checked and built as far as it goes without data.

    Attributes:
        config: the checked config.
        source: the reader.
        description: what the reader will yield.
        backbone: builds the backbone for an ``input_shape``.
        feature_dim: d, the width of its features.
        sockets: the method.
        faults: what goes wrong on purpose.
    """

    config: Config
    source: Source
    description: Description
    backbone: Callable[..., nn.Module]
    feature_dim: int
    sockets: Sockets
    faults: Faults


def plan(config: Config) -> Plan:
    """Check the whole config. Raises InputError in one line."""
    if config.objective not in HEADLINES:
        raise InputError(f"objective={config.objective}: should be one of {', '.join(HEADLINES)}")
    if config.objective.startswith("personal/") and config.evaluation.personal == "off":
        raise InputError(
            f"objective={config.objective}: is not measured with evaluation.personal=off"
        )
    others = ("loss", "regularizer", "personalization", "sampler", "aggregator")
    parts = {name: build(name, getattr(config, name)) for name in others}
    _check_sampling(parts["aggregator"], parts["sampler"])
    faults: Faults = build("faults", config.faults)
    _try_optimizer(config)
    _check_engine(config, parts["regularizer"])
    build("partition", config.partition.node, supplied=PARTITION_SUPPLIED)
    model = build("model", config.model, supplied=("input_shape",))
    head = build("head", config.head, supplied=("feature_dim", "num_classes"))
    source: Source = build("data", config.data.node)
    description = source.describe()
    if config.data.augment != "none" and len(description.input_shape) != 3:
        raise InputError(
            f"data.augment={config.data.augment}: is for images; these inputs are flat; use none"
        )
    width = feature_dim(model, description.input_shape)

    with _seeded(config.seed, "head"):
        parts["head"] = head(feature_dim=width, num_classes=description.num_classes)
    sockets = Sockets(**parts)
    sockets.personalization.check(sockets.head, sockets.loss)
    with _seeded(config.seed, "personalization"):
        sockets.personalization.create(width, description.num_classes)
    if not sockets.personalization.has_global:
        _check_without_global(config)
    return Plan(config, source, description, model, width, sockets, faults)


def deal(config: Config, source: Source, device: torch.device) -> FederatedData:
    """Load the dataset and deal it out to the clients."""
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
    holders = sum(len(index) > 0 for index in clients)
    if holders < len(clients):
        LOGGER.warning(
            "%d of %d clients have data; the others are never chosen, so that %d take part a round",
            holders,
            len(clients),
            min(holders, config.clients.per_round),
        )
    tests = match(dataset.test.labels.numpy(), counts, config.seed)
    return FederatedData(dataset, clients, tests, config.data.augment, config.seed, device)


def assemble(
    plan: Plan,
    fabric: Fabric,
    data: FederatedData,
    tracker: Tracker,
    client_folder: Path | None = None,
) -> Federation:
    """Wire everything together.

    Args:
        plan: the checked config and what was built from it.
        fabric: where and how tensors are computed, and by which processes.
        data: the population's data.
        tracker: is told of every round.
        client_folder: for what clients keep and RAM has no room for; None makes a temporary one.
    """
    _check_last_batches(plan, data)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    config, sockets, parts = plan.config, plan.sockets, plan.sockets.by_name()
    with _seeded(config.seed, "backbone"):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
    optimizer = build("optimizer", config.optimizer, supplied=OPTIMIZER_SUPPLIED)
    module = ClientModule(
        backbone,
        sockets.head,
        sockets.loss,
        sockets.regularizer,
        sockets.personalization,
        optimizer,
        parts,
    )
    travels, shared = module.travels, sockets.personalization.shared
    setting = Setting(
        seed=config.seed,
        rounds=config.rounds,
        num_classes=plan.description.num_classes,
        feature_dim=plan.feature_dim,
        num_clients=config.clients.count,
        clients_per_round=config.clients.per_round,
        class_counts=data.class_counts,
        parameter_shapes={name: value.shape for name, value in module.named_parameters()},
        shared=frozenset(name for name in module.weights if travels(name) and shared(name)),
        input_shape=plan.description.input_shape,
        functional=partial(_global_model, module),
    )
    for part in parts.values():
        part.setup(setting)
    plan.faults.setup(setting)
    module.complete()
    wanted, precision = config.engine.channels_last, config.engine.precision
    pays = wanted == "auto" and channels_last_pays(backbone, fabric.device, precision)
    if pays or wanted is True:
        module.to(memory_format=torch.channels_last)
    module.to(fabric.device)
    initial = {name: w.clone() for name, w in module.weights.items() if travels(name)}
    resources = Resources(
        fabric=fabric,
        module=module,
        data=data,
        parts=parts,
        sampler=sockets.sampler,
        personalization=sockets.personalization,
        initial=initial,
        store=ClientStore(
            config.evaluation.personal, config.clients.ram_gib * 2**30, client_folder
        ),
        local=config.local,
        eval_batch_size=config.evaluation.batch_size,
        faults=plan.faults,
    )
    ranks = ranks_of(fabric)
    placement = Placement(ranks, data.class_counts.sum(dim=1).tolist(), resources.store)
    server = Server(resources.split(initial)[0], sockets.aggregator, parts, ranks)
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)(resources=resources)
    if config.engine.compile:
        check_compiler(fabric.device)
        engine.compile()
    attack = MembershipAttack(config.evaluation.membership, resources)
    parameters = setting.shared & setting.parameter_shapes.keys()
    evaluator = Evaluator(config.evaluation, config.rounds, engine, data, parameters, attack, ranks)
    return Federation(
        ranks,
        placement,
        server,
        sockets.sampler,
        engine,
        plan.faults,
        Quarantine(config.on_bad_update),
        evaluator,
        tracker,
        Pictures(config.tracking, config.rounds, resources, ranks),
    )


def _global_model(module: ClientModule, round: int, weights: Tensors) -> Functional:
    """The global model that the server has, as a function; its head's own state comes along."""
    extras = {"head": module.head.broadcast(round)}
    return functional(module, Message(round, weights, extras))


def _check_engine(config: Config, regularizer: Part) -> None:
    """The engine can be, with so many processes, and compiled if it is to be."""
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)
    if config.engine.processes > 1 and not engine.func.shares_cohort:
        raise InputError(
            f"engine.devices={config.engine.devices} engine.num_nodes={config.engine.num_nodes}: "
            "this engine trains in one process; take engine=serial or engine=vectorized"
        )
    if config.engine.compile and isinstance(regularizer, Trajectory):
        raise InputError(
            "engine.compile=true: compiled code has no second derivatives, which "
            "regularizer=trajectory needs"
        )


def _check_sampling(aggregator: Part, sampler: Sampler) -> None:
    """Whether the average fits how the cohort is drawn."""
    if isinstance(aggregator, Private) and (not isinstance(sampler, Random) or sampler.by_mass):
        # What is known of privacy holds for cohorts that say nothing about anybody's data.
        raise InputError(
            "aggregator=private: epsilon is known for uniformly drawn cohorts; take sampler=random"
        )
    if sampler.by_mass and isinstance(aggregator, Average) and aggregator.weighting == "samples":
        LOGGER.warning(
            "larger clients are drawn more often and weigh more too: with this sampler take "
            "aggregator=uniform"
        )


def _check_without_global(config: Config) -> None:
    """Nothing of a global model can be asked for where there is none."""
    objective, measured = config.objective, config.evaluation
    of_global = objective.startswith(("global/", "membership/"))
    for name, value, needs_global, allowed in (
        ("objective", objective, of_global, "personal/* or train/loss"),
        ("evaluation.targets", measured.targets, bool(measured.targets), "[]"),
        (
            "evaluation.membership.attack",
            measured.membership.attack,
            measured.membership.attack != "off",
            "off",
        ),
    ):
        if needs_global:
            raise InputError(
                f"{name}={value}: there is no global model with this personalization; "
                f"should be {allowed}"
            )


def _try_optimizer(config: Config) -> None:
    """PyTorch's optimizers check some combinations themselves, when they get parameters."""
    optimizer = build("optimizer", config.optimizer, supplied=OPTIMIZER_SUPPLIED)
    try:
        optimizer(parameters=[nn.Parameter(torch.zeros(1))], round=1)
    except ValueError as error:
        raise InputError(f"optimizer: {error}") from error


def _check_last_batches(plan: Plan, data: FederatedData) -> None:
    """Found out now rather than in the round that first draws such a client."""
    size = plan.config.local.batch_size
    lonely = [client.client for client in data.clients if client.num_samples % size == 1]
    if lonely and not trains_on_one(plan.backbone, plan.description.input_shape):
        raise InputError(
            f"local.batch_size={size}: the last batch of client {lonely[0]} would hold one sample, "
            "too few for this model's BatchNorm; take another size or a model without BatchNorm"
        )


@contextmanager
def _seeded(seed: int, purpose: str) -> Iterator[None]:
    """PyTorch's own generator keyed for initial weights; the caller's state comes back after."""
    with torch.random.fork_rng(devices=[]):  # no process may touch the devices of the others
        torch.manual_seed(key(seed, purpose))
        yield
