"""Builds a federation from a checked plan and its data."""

from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fedexp.config.build import build
from fedexp.config.schema import Engine
from fedexp.core.client import ClientModule
from fedexp.core.functional import functional, functional_head
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Functional, Setting
from fedexp.core.randomness import seeded
from fedexp.core.server import Server
from fedexp.core.sockets import Head
from fedexp.data.federated import FederatedData
from fedexp.distributed.placement import Placement
from fedexp.distributed.ranks import ranks_of
from fedexp.engines.allocator import keep_freed_memory
from fedexp.engines.layout import check_compiler, prefers_channels_last
from fedexp.engines.resources import Resources
from fedexp.errors import InputError
from fedexp.evaluation.best_model import BestModel
from fedexp.evaluation.evaluator import Evaluator
from fedexp.evaluation.membership import MembershipAttack
from fedexp.evaluation.meter import Meter
from fedexp.faults.quarantine import Quarantine
from fedexp.federation import Federation
from fedexp.models.init import initialize
from fedexp.models.shape import trains_on_one
from fedexp.runtime.plan import ENGINE_SUPPLIED, Plan
from fedexp.state.client_store import ClientStore
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
        client_folder: for client states that exceed the RAM bound; None uses a temporary one.
    """
    _check_last_batches(plan, data)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    config, sockets, parts = plan.config, plan.sockets, plan.sockets.by_name()
    module = _resident_module(plan)
    setting = _setting(plan, data, module)
    for part in parts.values():
        part.setup(setting)
    plan.faults.setup(setting)
    module.finish_setup()
    _place_module(module, config.engine, fabric.device)
    resources = _resources(plan, fabric, data, module, client_folder)
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)(resources=resources)
    if config.engine.compile:
        check_compiler(fabric.device)
        engine.compile()
    ranks = ranks_of(fabric)
    sizes = data.class_counts.sum(dim=1).tolist()
    placement = Placement(
        ranks, sizes, clients_with_state=lambda: resources.store.clients_with_state
    )
    attack = MembershipAttack(config.evaluation.membership, resources)
    parameters = setting.shared & setting.parameter_shapes.keys()
    tunes_best = sockets.personalization.tunes_best and config.evaluation.personal != "off"
    best = BestModel() if tunes_best else None
    evaluator = Evaluator(
        config.evaluation, config.rounds, engine, data, parameters, attack, ranks, best
    )
    meter, quarantine = Meter(), Quarantine(config.on_bad_update)
    reducibles = (meter, quarantine, evaluator, placement)
    shared = resources.split(resources.initial)[0]
    return Federation(
        ranks,
        placement,
        Server(shared, sockets.aggregator, parts, ranks, reducibles),
        sockets.sampler,
        engine,
        plan.faults,
        quarantine,
        meter,
        evaluator,
        tracker,
        Pictures(config.tracking, config.rounds, resources, ranks),
    )


def _resident_module(plan: Plan) -> ClientModule:
    """The resident module; its parts are not set up yet."""
    config, sockets = plan.config, plan.sockets
    with seeded(config.seed, "backbone"):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
        initialize(backbone, config.model.init)
    return ClientModule(
        backbone,
        sockets.head,
        sockets.loss,
        sockets.regularizer,
        sockets.personalization,
        plan.optimizer,
        sockets.by_name(),
    )


def _setting(plan: Plan, data: FederatedData, module: ClientModule) -> Setting:
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
        class_counts=data.class_counts,
        parameter_shapes={name: value.shape for name, value in module.named_parameters()},
        shared=frozenset(name for name in module.weights if is_sent(name) and shared(name)),
        input_shape=about.input_shape,
        functional=partial(_global_model, module),
        head=partial(_global_head, module.head),
    )


def _place_module(module: ClientModule, engine: Engine, device: torch.device) -> None:
    """Move the module to the device, in the memory layout of ``engine.channels_last``."""
    prefers = prefers_channels_last(module.backbone, device, engine.precision)
    if engine.channels_last is True or (engine.channels_last == "auto" and prefers):
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
    single = [client.client for client in data.clients if client.num_samples % size == 1]
    if single and not trains_on_one(plan.backbone, plan.description.input_shape):
        raise InputError(
            f"local.batch_size={size}: the last batch of client {single[0]} would hold one sample, "
            "too few for this model's BatchNorm; take another size or a model without BatchNorm"
        )
