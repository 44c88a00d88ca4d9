"""Wiring a federation together from a checked plan and its data."""

from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fedexp.build import ENGINE_SUPPLIED, OPTIMIZER_SUPPLIED, Plan
from fedexp.client import ClientModule
from fedexp.data.federated import FederatedData
from fedexp.engines.base import Resources
from fedexp.errors import InputError
from fedexp.evaluation.evaluator import Evaluator
from fedexp.evaluation.membership import MembershipAttack
from fedexp.federation import Federation
from fedexp.functional import functional
from fedexp.layout import channels_last_pays, check_compiler
from fedexp.memory import keep_freed_memory
from fedexp.messages import Message, Tensors
from fedexp.models.shape import trains_on_one
from fedexp.parts import Functional, Setting
from fedexp.placement import Placement
from fedexp.quarantine import Quarantine
from fedexp.randomness import seeded
from fedexp.ranks import ranks_of
from fedexp.schema import Engine, build
from fedexp.server import Server
from fedexp.store import ClientStore
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
    module.complete()
    _lay_out(module, config.engine, fabric.device)
    resources = _resources(plan, fabric, data, module, client_folder)
    engine = build("engine", config.engine.node, supplied=ENGINE_SUPPLIED)(resources=resources)
    if config.engine.compile:
        check_compiler(fabric.device)
        engine.compile()
    ranks = ranks_of(fabric)
    shared = resources.split(resources.initial)[0]
    attack = MembershipAttack(config.evaluation.membership, resources)
    parameters = setting.shared & setting.parameter_shapes.keys()
    return Federation(
        ranks,
        Placement(ranks, data.class_counts.sum(dim=1).tolist(), resources.store),
        Server(shared, sockets.aggregator, parts, ranks),
        sockets.sampler,
        engine,
        plan.faults,
        Quarantine(config.on_bad_update),
        Evaluator(config.evaluation, config.rounds, engine, data, parameters, attack, ranks),
        tracker,
        Pictures(config.tracking, config.rounds, resources, ranks),
    )


def _resident_module(plan: Plan) -> ClientModule:
    """The one module of this process; its parts are not set up yet."""
    config, sockets = plan.config, plan.sockets
    with seeded(config.seed, "backbone"):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
    return ClientModule(
        backbone,
        sockets.head,
        sockets.loss,
        sockets.regularizer,
        sockets.personalization,
        build("optimizer", config.optimizer, supplied=OPTIMIZER_SUPPLIED),
        sockets.by_name(),
    )


def _setting(plan: Plan, data: FederatedData, module: ClientModule) -> Setting:
    """What the parts are told of the federation."""
    config, about = plan.config, plan.description
    travels, shared = module.travels, plan.sockets.personalization.shared
    return Setting(
        seed=config.seed,
        rounds=config.rounds,
        num_classes=about.num_classes,
        feature_dim=plan.feature_dim,
        num_clients=config.clients.count,
        clients_per_round=config.clients.per_round,
        class_counts=data.class_counts,
        parameter_shapes={name: value.shape for name, value in module.named_parameters()},
        shared=frozenset(name for name in module.weights if travels(name) and shared(name)),
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
        initial={n: w.clone() for n, w in module.weights.items() if module.travels(n)},
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
