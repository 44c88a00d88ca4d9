"""Builds a federation from a checked plan and its data."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric

from fedexp.config.build import build
from fedexp.config.schema import Config
from fedexp.config.schema import Engine as EngineConfig
from fedexp.core.client import ClientModule
from fedexp.core.functional import functional, functional_head
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Functional, Setting, TensorStore
from fedexp.core.randomness import seeded
from fedexp.core.server import Server
from fedexp.core.sockets import Head
from fedexp.data.federated import FederatedData
from fedexp.distributed.ranks import Ranks, ranks_of
from fedexp.engines.allocator import keep_freed_memory
from fedexp.engines.base import Engine
from fedexp.engines.graph import Graphs, uses_graphs
from fedexp.engines.layout import check_compiler, prefers_channels_last
from fedexp.engines.resources import Resources
from fedexp.errors import InputError
from fedexp.evaluation.best_model import BestModel
from fedexp.evaluation.evaluator import Evaluator
from fedexp.evaluation.fewshot import FewShot
from fedexp.evaluation.membership import MembershipAttack
from fedexp.evaluation.meter import Meter
from fedexp.evaluation.overlap import Overlap
from fedexp.faults.quarantine import Quarantine
from fedexp.federation import Federation
from fedexp.models.shape import trains_on_one
from fedexp.runtime.plan import ENGINE_SUPPLIED, Plan
from fedexp.runtime.plan import plan as make_plan
from fedexp.state.client_store import ClientStore
from fedexp.state.placement import Placement
from fedexp.state.ram_and_disk import RamAndDisk
from fedexp.tracking.pictures import Pictures
from fedexp.tracking.tracker import Tracker


def assemble(
    plan: Plan,
    fabric: Fabric,
    data: FederatedData,
    tracker: Tracker,
    client_folder: Path | None = None,
) -> Federation:
    """Build the federation.

    Args:
        plan: the checked config and what was built from it.
        fabric: device, precision and processes.
        data: the population's data.
        tracker: gets the record of every round.
        client_folder: for what exceeds the RAM bound, client states and the server's; None uses
            temporary ones.
    """
    _check_last_batches(plan, data)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    module = _resident_module(plan)
    setting = _setting(plan, data, module, partial(_store, plan.config, client_folder))
    _set_up(plan, module, setting, fabric.device)
    resources = _resources(plan, fabric, data, module, client_folder)
    engine = _engine(plan.config.engine, resources)
    ranks = ranks_of(fabric)
    by_time = plan.config.engine.balance == "time"
    placement = Placement(ranks, data.sizes.numpy(), resources.store, by_time)
    overlap = _overlap(plan.config, fabric, data) if plan.config.evaluation.overlap else None
    evaluator = _evaluator(plan.config, engine, setting, ranks, overlap)
    meter, quarantine = Meter(), Quarantine(plan.config.on_bad_update)
    reducibles = (meter, quarantine, evaluator, placement)
    shared = resources.split(resources.initial)[0]
    return Federation(
        ranks,
        placement,
        Server(shared, plan.sockets.aggregator, plan.sockets.by_name(), ranks, reducibles),
        plan.sockets.sampler,
        engine,
        plan.faults,
        quarantine,
        meter,
        evaluator,
        tracker,
        Pictures(plan.config.tracking, plan.config.rounds, resources, ranks),
    )


def _resident_module(plan: Plan) -> ClientModule:
    """The resident module; its parts are not set up yet."""
    config, sockets = plan.config, plan.sockets
    with seeded(config.seed, "backbone"):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
    return ClientModule(
        backbone,
        sockets.head,
        sockets.loss,
        sockets.regularizer,
        sockets.personalization,
        plan.optimizer,
        sockets.by_name(),
    )


def _store(config: Config, folder: Path | None, name: str) -> TensorStore:
    """``Setting.make_store``, with the bound of the clients' states."""
    return RamAndDisk(config.clients.ram_gib * 2**30, folder / name if folder else None)


def _setting(
    plan: Plan,
    data: FederatedData,
    module: ClientModule,
    make_store: Callable[[str], TensorStore],
) -> Setting:
    """What the parts may know about the experiment."""
    config, about = plan.config, plan.description
    is_sent, shared = module.is_sent, plan.sockets.personalization.shared
    return Setting(
        seed=config.seed,
        rounds=config.rounds,
        num_classes=about.num_classes,
        feature_dim=plan.feature_dim,
        num_clients=config.clients.count,
        clients_per_round=config.clients.per_round,
        class_counts=data.class_counts if len(data.counted) == len(data.clients) else None,
        parameter_shapes={n: value.shape for n, value in module.tensor_index.parameters()},
        shared=frozenset(name for name in module.weights if is_sent(name) and shared(name)),
        input_shape=about.input_shape,
        functional=partial(_global_model, module),
        make_store=make_store,
        vocabulary=about.vocabulary,
        head=partial(_global_head, module.head),
        sizes=data.sizes,
        count_classes=data.classes_of,
    )


def _set_up(plan: Plan, module: ClientModule, setting: Setting, device: torch.device) -> None:
    """Set up the parts, and move the resident module to the device."""
    for part in plan.sockets.by_name().values():
        part.setup(setting)
    plan.faults.setup(setting)
    module.finish_setup()
    config = plan.config.engine
    prefers = prefers_channels_last(module.backbone, device, config.precision)
    if config.channels_last is True or (config.channels_last == "auto" and prefers):
        module.to(memory_format=torch.channels_last)
    module.to(device)


def _resources(
    plan: Plan,
    fabric: Fabric,
    data: FederatedData,
    module: ClientModule,
    client_folder: Path | None,
) -> Resources:
    """What the engine works with."""
    config, sockets = plan.config, plan.sockets
    ram_bytes = config.clients.ram_gib * 2**30
    return Resources(
        fabric=fabric,
        module=module,
        data=data,
        parts=sockets.by_name(),
        sampler=sockets.sampler,
        personalization=sockets.personalization,
        initial={n: w.clone() for n, w in module.weights.items() if module.is_sent(n)},
        store=ClientStore(config.evaluation.personal, ram_bytes, client_folder),
        local=config.local,
        eval_batch_size=config.evaluation.batch_size,
        faults=plan.faults,
    )


def _engine(config: EngineConfig, resources: Resources) -> Engine:
    """The engine, which compiles or captures its steps if ``engine`` says so."""
    engine: Engine = build("engine", config.node, supplied=ENGINE_SUPPLIED)(resources=resources)
    if config.compile:
        check_compiler(resources.fabric.device)
        engine.compile()
    if uses_graphs(config, engine.captures_steps, resources.fabric.device):
        engine.graphs = Graphs(resources)
    return engine


def _overlap(config: Config, fabric: Fabric, data: FederatedData) -> Overlap:
    """What evaluates while the next round trains: an engine with parts of its own."""
    if fabric.device.type != "cpu" or fabric.world_size > 1 or config.engine.compile:
        raise InputError(
            "evaluation.overlap=true: works on a CPU, in one process and without engine.compile "
            "only; should be false"
        )
    copy = make_plan(config)
    module = _resident_module(copy)
    setting = _setting(copy, data, module, partial(_store, config, None))
    _set_up(copy, module, setting, fabric.device)
    engine = _engine(config.engine, _resources(copy, fabric, data, module, None))
    return Overlap(engine, config.clients.ram_gib * 2**30, _fewshot(config, engine))


def _fewshot(config: Config, engine: Engine) -> FewShot | None:
    """The few-shot evaluation by this engine, where the test split has classes of its own."""
    unseen = engine.resources.data.description.unseen_classes
    return FewShot(config.evaluation.fewshot, engine.resources) if unseen else None


def _evaluator(
    config: Config, engine: Engine, setting: Setting, ranks: Ranks, overlap: Overlap | None
) -> Evaluator:
    """The evaluator, which keeps the best global model if personal models start from it."""
    resources, measured = engine.resources, config.evaluation
    tunes_best = resources.personalization.tunes_best and measured.personal != "off"
    return Evaluator(
        measured,
        config.rounds,
        engine,
        resources.data,
        setting.shared & setting.parameter_shapes.keys(),
        MembershipAttack(measured.membership, resources),
        ranks,
        BestModel() if tunes_best else None,
        _fewshot(config, engine),
        overlap,
    )


def _global_model(module: ClientModule, round: int, weights: Tensors) -> Functional:
    """The server's global model as a function, with the head's current extras."""
    extras = {"head": module.head.broadcast(round)}
    return functional(module, Message(round, weights, extras))


def _global_head(head: Head, round: int) -> Functional:
    """The head of the server's global model as a function."""
    return functional_head(head, Message(round, {}, {"head": head.broadcast(round)}))


def _check_last_batches(plan: Plan, data: FederatedData) -> None:
    """Raise InputError if a batch of one sample would fail in BatchNorm."""
    size = plan.config.local.batch_size
    single = np.flatnonzero(data.sizes.numpy() % size == 1)
    if len(single) and not trains_on_one(plan.backbone, plan.description.input_shape):
        raise InputError(
            f"local.batch_size={size}: the last batch of client {single[0]} would hold one sample, "
            "too few for this model's BatchNorm; take another size or a model without BatchNorm"
        )
