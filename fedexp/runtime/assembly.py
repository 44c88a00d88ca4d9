"""Wiring a federation together from a checked plan and its data."""

from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fedexp.config.build import build
from fedexp.config.schema import Engine
from fedexp.core.client import ClientModule
from fedexp.core.functional import functional
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Functional, Setting
from fedexp.core.randomness import seeded
from fedexp.core.server import Server
from fedexp.data.federated import FederatedData
from fedexp.distributed.placement import Placement
from fedexp.distributed.ranks import ranks_of
from fedexp.engines.allocator import keep_freed_memory
from fedexp.engines.base import Resources
from fedexp.engines.layout import channels_last_pays, check_compiler
from fedexp.errors import InputError
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
    module = _resident_module(plan)
    setting = _setting(plan, data, module)
    for part in parts.values():
        part.setup(setting)
    plan.faults.setup(setting)
    module.finish_setup()
    _lay_out(module, config.engine, fabric.device)
    resources = _resources(plan, fabric, data, module, client_folder)
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)(resources=resources)
    if config.engine.compile:
        check_compiler(fabric.device)
        engine.compile()
    ranks = ranks_of(fabric)
    sizes = data.class_counts.sum(dim=1).tolist()
    placement = Placement(ranks, sizes, keepers=lambda: resources.store.keepers)
    attack = MembershipAttack(config.evaluation.membership, resources)
    parameters = setting.shared & setting.parameter_shapes.keys()
    evaluator = Evaluator(config.evaluation, config.rounds, engine, data, parameters, attack, ranks)
    meter, quarantine = Meter(), Quarantine(config.on_bad_update)
    companions = (meter, quarantine, evaluator, placement)
    shared = resources.split(resources.initial)[0]
    return Federation(
        ranks,
        placement,
        Server(shared, sockets.aggregator, parts, ranks, companions),
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
    """The one module of this process; its parts are not set up yet."""
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
    """What the parts are told of the federation."""
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
    )


def _lay_out(module: ClientModule, engine: Engine, device: torch.device) -> None:
    """Move the module to the device, its kernels in the order that is wanted or pays."""
    pays = channels_last_pays(module.backbone, device, engine.precision)
    if engine.channels_last is True or (engine.channels_last == "auto" and pays):
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
    """The global model that the server has, as a function; its head's own state comes along."""
    extras = {"head": module.head.broadcast(round)}
    return functional(module, Message(round, weights, extras))


def _check_last_batches(plan: Plan, data: FederatedData) -> None:
    """Found out now rather than in the round that first draws such a client."""
    size = plan.config.local.batch_size
    lonely = [client.client for client in data.clients if client.num_samples % size == 1]
    if lonely and not trains_on_one(plan.backbone, plan.description.input_shape):
        raise InputError(
            f"local.batch_size={size}: the last batch of client {lonely[0]} would hold one sample, "
            "too few for this model's BatchNorm; take another size or a model without BatchNorm"
        )
