"""Builds the parts of a federation from a checked plan and its data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric

from fedexp.compression.differences import Differences
from fedexp.compression.download import CompressingServer
from fedexp.config.compatibility.traits import HIDES_COHORTS, SIMULATED_TIME
from fedexp.config.schema import Config
from fedexp.core import results
from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Functional
from fedexp.core.error_notes import noted
from fedexp.core.functional import functional, functional_head
from fedexp.core.last_batch import LastBatch
from fedexp.core.local_model import LocalModel
from fedexp.core.messages import Message, Tensors, count_bytes
from fedexp.core.part import Clients, Model, ServerTools, Setting, TensorStore, trained_samples
from fedexp.core.randomness import seeded
from fedexp.core.server import Server
from fedexp.core.sockets import Head
from fedexp.data.batches import count_samples, nearest_steps
from fedexp.data.federated import FederatedData
from fedexp.data.server_samples import draw_samples
from fedexp.engines.allocator import keep_freed_memory
from fedexp.engines.base import Engine
from fedexp.engines.layout import check_compiler, prefers_channels_last
from fedexp.engines.resources import Resources
from fedexp.measures.panel import remembers
from fedexp.models.shape import training_flops
from fedexp.runtime.last_batches import check_single_samples, last_batch_of
from fedexp.runtime.plan import Plan
from fedexp.runtime.population import Population
from fedexp.state.client_store import ClientStore
from fedexp.state.ram_and_disk import ServerTensors


def assemble(
    plan: Plan,
    fabric: Fabric,
    data: FederatedData,
    client_folder: Path | None,
    population: Population,
) -> tuple[Setting, Resources]:
    """Set up the parts; the arguments are explained at ``Federation``.

    Returns:
        All that the parts and measures may know, and all that the engine works with.
    """
    last_batch = last_batch_of(plan)
    check_single_samples(plan, last_batch, data)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    config, module = plan.config, resident_module(plan)
    make_store = partial(_store, config, client_folder)
    setting = population.known(_setting(plan, data, module, last_batch, make_store))
    _set_up(plan, module, setting, fabric.device)
    return setting, Resources(
        fabric=fabric,
        module=module,
        data=data,
        parts=plan.sockets.by_name(),
        sampler=plan.sockets.sampler,
        personalization=plan.sockets.personalization,
        initial={n: w.clone() for n, w in module.weights.items() if module.is_sent(n)},
        store=ClientStore(remembers(plan.measures), config.clients.ram_gib * 2**30, client_folder),
        local=config.local,
        last_batch=last_batch,
        eval_batch_size=config.evaluation.batch_size,
        faults=plan.faults,
        system=plan.system,
        upload=_upload(plan, module),
    )


def resident_module(plan: Plan) -> ClientModule:
    """Build the resident module; its parts are not set up yet."""
    with seeded(plan.config.seed, "backbone"):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
    return ClientModule(backbone, plan.sockets, plan.optimizer)


def _store(config: Config, folder: Path | None, name: str) -> TensorStore:
    """Make a store for ``ServerTools.make_store``, with the RAM bound ``clients.ram_gib``."""
    return ServerTensors(config.clients.ram_gib * 2**30, folder / name if folder else None)


def _setting(
    plan: Plan,
    data: FederatedData,
    module: ClientModule,
    last_batch: LastBatch,
    make_store: Callable[[str], TensorStore],
) -> Setting:
    """Make the ``Setting``, which holds all that parts may know about the experiment."""
    simulates = SIMULATED_TIME in plan.system.traits
    clients = Clients(
        data.sizes,
        data.class_counts if len(data.counted) == len(data.clients) else None,
        data.classes_of,
        held_out=[client.num_samples for client in data.held_out_clients.values()],
        turn_seconds=partial(_turn_seconds, plan, data, module, last_batch) if simulates else None,
    )
    of_loss = plan.sockets.loss.named_parameters(prefix="loss")
    server = ServerTools(
        global_model=partial(_global_model, module),
        head=partial(_global_head, module.head),
        make_store=make_store,
        draw_model=partial(_drawn_model, plan, {n: w.detach().clone() for n, w in of_loss}),
        draw_samples=partial(draw_samples, data),
        local_optimizer=plan.optimizer,
    )
    return replace(setting_without_data(plan, module, clients), server=server)


def setting_without_data(plan: Plan, module: ClientModule, clients: Clients) -> Setting:
    """The ``Setting`` with which a part makes its parameters and buffers; it has no server tools.

    Args:
        plan: the checked config.
        module: the resident module.
        clients: the population in numbers.
    """
    config, about = plan.config, plan.description
    is_sent, shared = module.is_sent, plan.sockets.personalization.shared
    return Setting(
        seed=config.seed,
        rounds=config.rounds,
        num_classes=about.num_classes,
        feature_dim=plan.feature_dim,
        num_clients=config.clients.count,
        clients_per_round=config.clients.per_round,
        clients=clients,
        model=Model(
            parameters={n: value.shape for n, value in module.tensor_index.parameters()},
            shared=frozenset(name for name in module.weights if is_sent(name) and shared(name)),
            input_shape=about.input_shape,
            vocabulary=about.vocabulary,
            before_output=plan.sockets.head.before_output,
        ),
        updates_per_step=plan.coordination.updates_per_step(config.clients.per_round),
    )


def _set_up(plan: Plan, module: ClientModule, setting: Setting, device: torch.device) -> None:
    """Set up the parts, and move the resident module to the device."""
    sizes = setting.model.input_shape, setting.num_classes, setting.num_clients
    flops_of_sample = partial(training_flops, plan.backbone, *sizes)
    plan.system.setup(setting.num_clients, setting.seed, flops_of_sample)
    of_sampler = _of_sampler(plan, setting)
    for socket, part in plan.sockets.by_name().items():
        with noted("setting up", {socket: part}):
            part.setup(of_sampler if socket == "sampler" else setting)
    _check_head(plan)
    plan.faults.setup(setting)
    plan.coordination.setup(setting, plan.system)
    module.finish_setup()
    config = plan.config.engine
    prefers = prefers_channels_last(module.backbone, device, config.precision)
    if config.channels_last is True or (config.channels_last == "auto" and prefers):
        module.to(memory_format=torch.channels_last)
    module.to(device)


def _of_sampler(plan: Plan, setting: Setting) -> Setting:
    """The sampler's ``Setting``: with the number of invited clients, perhaps with a secret seed."""
    invited = replace(setting, clients_per_round=plan.system.invited)
    secret = setting.server.secret_seed
    if secret is None or HIDES_COHORTS not in plan.sockets.aggregator.traits:
        return invited
    return replace(invited, seed=secret)


def _check_head(plan: Plan) -> None:
    """Raise InputError if the head's logits of two samples are not [2, C]."""
    head, was_training = plan.sockets.head, plan.sockets.head.training
    z = torch.zeros(2, plan.feature_dim)
    with noted("setting up", {"head": head}), torch.no_grad():
        logits = head.eval()(z)
    head.train(was_training)
    like = torch.zeros(2, plan.description.num_classes)
    results.alike(logits, like, "logits", "head", head, "forward(...)")


def _upload(plan: Plan, module: ClientModule) -> Differences | None:
    """The compression of updates; None if updates are sent uncompressed."""
    if plan.upload.is_none:
        return None
    names, seed = _trained(module), plan.config.seed
    return Differences(plan.upload, names, seed, "compression/upload", plan.upload.error_feedback)


def make_server(plan: Plan, resources: Resources) -> Server:
    """The server with the initial weights."""
    weights, config = resources.split(resources.initial)[0], plan.config
    if plan.download.is_none:
        return Server(weights, resources.parts)
    return CompressingServer(
        weights,
        resources.parts,
        plan.download,
        _trained(resources.module),
        config.seed,
        config.clients.count,
    )


def _trained(module: ClientModule) -> frozenset[str]:
    """Names of the trained parameters."""
    return frozenset(name for name, _ in module.tensor_index.parameters())


def make_engine(plan: Plan, resources: Resources) -> Engine:
    """Make the engine; with ``engine.compile`` it compiles the training step."""
    engine, compiles = plan.engine(resources=resources), plan.config.engine.compile
    if compiles:
        check_compiler(resources.fabric.device)
        engine.compile("default" if compiles is True else compiles)
    return engine


def _turn_seconds(
    plan: Plan,
    data: FederatedData,
    module: ClientModule,
    last_batch: LastBatch,
    clients: np.ndarray,
) -> np.ndarray:
    """Expected seconds [n] of the turns of ``clients`` [n]; see ``Clients.turn_seconds``."""
    samples = expected_samples(plan, last_batch, data.sizes.numpy()[clients])
    shared = plan.sockets.personalization.shared
    weights = {n: w for n, w in module.weights.items() if module.is_sent(n) and shared(n)}
    nbytes = np.full(len(clients), count_bytes(weights))
    assert plan.system.devices is not None
    return plan.system.devices.seconds(clients, samples, nbytes, nbytes)


def expected_samples(plan: Plan, last_batch: LastBatch, sizes: np.ndarray) -> np.ndarray:
    """Expected samples [n] of all phases of a turn, for clients with ``sizes`` [n] samples."""
    distinct, places = np.unique(sizes, return_inverse=True)
    samples = [_expected_samples(plan, last_batch, size) for size in distinct.tolist()]
    return np.array(samples)[places]


def _expected_samples(plan: Plan, last_batch: LastBatch, size: int) -> float:
    """Expected samples of all phases of a turn, for a client with ``size`` samples."""
    local, phases = plan.config.local, plan.sockets.personalization.phases
    trained = trained_samples(plan.sockets.by_name().values(), size)
    lengths = last_batch.lengths(trained, local.batch_size)

    def samples(epochs: float) -> int:
        steps = [nearest_steps(phase.epochs, len(lengths)) for phase in phases(epochs)]
        return sum(count_samples(lengths, each) for each in steps)

    if local.steps is not None:
        return samples(local.steps / len(lengths))
    if isinstance(local.epochs, list):  # between its ends the samples grow evenly
        return float(np.mean([samples(each) for each in local.epochs]))
    return samples(local.epochs)


def _drawn_model(plan: Plan, of_loss: Tensors, number: int) -> Tensors:
    """Draw the initial weights of a new backbone and head, on the CPU; ``number`` seeds them.

    ``of_loss`` are the loss's initial parameters, which are the same in every model.
    """
    with seeded(plan.config.seed, "backbone", number):
        backbone = plan.backbone(input_shape=plan.description.input_shape)
    with seeded(plan.config.seed, "head", number):
        model = LocalModel(backbone, plan.head())
    model.index_weights()
    drawn = {name: weight for name, weight in model.weights.items() if model.is_sent(name)}
    return drawn | of_loss


def _global_model(module: ClientModule, round: int, weights: Tensors) -> Functional:
    """The server's global model with the head's current extras, as a function."""
    extras = {"head": module.head.broadcast(round)}
    return functional(module, Message(round, weights, extras))


def _global_head(head: Head, round: int) -> Functional:
    """The head of the server's global model as a function."""
    return functional_head(head, Message(round, {}, {"head": head.broadcast(round)}))
