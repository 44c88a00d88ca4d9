"""One run, from its checked config to its results."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedexp.config.compatibility.traits import READS_ROUNDS
from fedexp.config.compatibility.unread import warn_of_unread
from fedexp.config.launch import Launch
from fedexp.config.schema import Config
from fedexp.config.sources import Code, source_code
from fedexp.core import results
from fedexp.core.client import ClientModule
from fedexp.core.log_levels import errors_only
from fedexp.core.messages import Message
from fedexp.core.saved_state import saved_state
from fedexp.data.description_file import write_description
from fedexp.data.federated import FederatedData
from fedexp.data.fingerprint import fingerprint
from fedexp.data.load import load_data
from fedexp.data.partition_table import write_partition
from fedexp.distributed import launcher
from fedexp.distributed.fabric import make_fabric
from fedexp.distributed.processes import reason_of, spawn
from fedexp.distributed.ranks import LostRankError, first_rank_first, ranks_of
from fedexp.drawing.data_figure import save_picture
from fedexp.engines.layout import gains_from_bf16
from fedexp.engines.threads import restored_threads, set_threads
from fedexp.errors import InputError
from fedexp.measures.panel import headlines
from fedexp.measures.partition import partition_picture
from fedexp.runtime.early import Early
from fedexp.runtime.federation import Federation
from fedexp.runtime.interrupts import Interrupts
from fedexp.runtime.limits import Clock
from fedexp.runtime.open_run import OpenRun, open_run
from fedexp.runtime.plan import Plan, plan
from fedexp.runtime.population import SIMULATED, Population
from fedexp.runtime.result import RunResult
from fedexp.runtime.stopping import SaveOrStop
from fedexp.state.atomic import sync
from fedexp.state.run_folder import METRICS, PARTITION
from fedexp.state.saved_models import save_weights
from fedexp.tracking.environment import environment
from fedexp.tracking.failed_figures import leaving_out
from fedexp.tracking.learned_nothing import learned_nothing
from fedexp.tracking.origin import Origin, later_code, origin, write_origins
from fedexp.tracking.summary import file_digests, summarize, write_summary

LOGGER = logging.getLogger(__name__)


def execute(
    config: Config,
    folder: Path,
    launch: Launch,
    early: Early | None = None,
    population: Population = SIMULATED,
) -> RunResult:
    """Run the experiment, or resume it, and write all results to ``folder``.

    If the run saves checkpoints, it ends early, with the results so far, at ``limits.minutes``,
    SIGTERM, SIGUSR1 or SIGUSR2. If the run has several processes, this function starts them.
    However, if torchrun or SLURM has started the processes, each process calls this function. All
    processes then work in the first process's ``folder`` and return the first process's result.

    Args:
        config: the checked config.
        folder: the run's own folder; created if absent.
        launch: how the run was started.
        early: the objects that the early checks built; None to build them here.
        population: reaches the clients; only ``SIMULATED`` allows several processes.

    Raises:
        InputError: the config is invalid, ``folder`` has another run, its disk is full, a process
            died or cannot be reached, or ``limits.idle_rounds`` is reached.
        Interrupted: Ctrl-C in a run with checkpoints, after the rounds so far are saved; or a
            signal ended the processes of a run that has several.
    """
    if launcher.must_spawn(config.engine):
        return _run_in_processes(config, folder, launch, early)
    try:
        return _run(config, folder, launch, early, population)[0]
    except LostRankError as error:  # torchrun or SLURM has started this process
        if isinstance(reason := reason_of(error), InputError):
            raise reason from None
        how = "its output says why; to go on, add resume=auto to the same command"
        raise InputError(f"{error}: {how}") from error


def _run(
    config: Config,
    folder: Path,
    launch: Launch,
    early: Early | None = None,
    population: Population = SIMULATED,
) -> tuple[RunResult, Message]:
    """Run in this process, alone or as a rank; return its result and the final global model."""
    clock = Clock(config.limits.minutes)
    fabric = make_fabric(config.engine)  # from now on only the first rank logs
    planned = plan(config, early)
    ranks = ranks_of(fabric)
    if ranks.is_first:
        warn_of_unread(planned.unread, launch.overrides, LOGGER)
        if planned.why_engine and launch.sweep is None:  # a sweep has many jobs
            LOGGER.info("engine=auto: %s", planned.why_engine)
    with first_rank_first(fabric):  # it fills the caches for the others
        data = population.load(config, planned.source, fabric.device)
    code = source_code(config.model_dump(mode="json"))
    with restored_threads(), open_run(folder, config, launch, ranks, planned.measures, code) as run:
        shape = planned.description.input_shape
        set_threads(config, planned.backbone, shape, fabric.device, ranks)
        federation = Federation(planned, fabric, data, run.tracker, run.clients, population)
        if run.checkpoint:
            federation.restore(run.checkpoint)
        run.begin(config, launch)
        warnings = _record_start(planned, run, data, code, federation) if ranks.is_first else []
        last, stopped = _train(federation, config, run, clock)
        writes = ranks.is_first and run.has_folder()
        if writes:
            for name, message in federation.measures.chosen.items():
                save_weights(saved_state(federation.load(message)), run.folder, name)
        model = federation.global_model(last)
        warnings += [*_warnings(run.history.metrics, data), *later_code(run.origins)]
        summary = _summary(planned, launch, run, model, clock, warnings)
        if writes:
            saved = saved_state(model)
            summary["records"] = file_digests(run.folder)
            summary["outside_digest"] = sorted(saved.keys() - model.weights.keys())
            sync(run.folder / METRICS)
            save_weights(saved, run.folder)
            write_summary(run.folder, summary)
        run.recorder.finish(summary)
    lines, first = ranks.from_first(lambda: (run.lines, summary))
    result = RunResult(run.folder, lines, first, lambda: model, stopped)
    return result, replace(federation.server.broadcast(last), readdress=None)


def _record_start(
    planned: Plan, run: OpenRun, data: FederatedData, code: Code, federation: Federation
) -> list[str]:
    """Write the files about data, code and machine; returns warnings about the run's starts."""
    model, config, device = federation.module.backbone, planned.config, federation.module.device
    if gains_from_bf16(model, device, config.engine.precision):
        LOGGER.info("engine.precision=bf16-mixed would train faster on this CPU")
    # Clients may have been left out of the data by now.
    write_partition(run.folder / PARTITION, data)
    write_description(run.folder, data.description, data.preparation)
    machine = environment(device, config.engine, code.libraries)
    now = origin(config.rounds, code, fingerprint(data), machine)
    done = run.checkpoint.round if run.checkpoint else 0
    run.origins = write_origins(run.folder, run.origins, now, done)
    line = _of_other_rounds(planned, run.origins)
    if line:
        LOGGER.warning("%s", line)
    return [line] if line else []


def _train(
    federation: Federation, config: Config, run: OpenRun, clock: Clock
) -> tuple[int, str | None]:
    """Train all rounds, or the rounds after a checkpoint.

    Returns the last trained round, and why training ended early (None if it ended as planned).
    """
    done = 0
    with closing(federation.store):
        if run.checkpoint:
            clock.add(run.checkpoint.seconds)
            done = run.checkpoint.round
        saves, announce = config.checkpoint.keep > 0, federation.ranks.is_first
        with Interrupts(announce) if saves else nullcontext() as interrupts:
            save_or_stop = SaveOrStop(federation, config, run, clock, interrupts)
            last = federation.run(config.rounds, done, save_or_stop)
    return last, save_or_stop.stopped


def _summary(
    planned: Plan,
    launch: Launch,
    run: OpenRun,
    model: ClientModule,
    clock: Clock,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The content of ``summary.json``; ``model`` is the final global model."""
    config = planned.config
    return summarize(
        run.history.metrics,
        headlines(planned.measures),
        config.targets,
        config.model_dump(mode="json"),
        launch.overrides,
        launch.choices,
        model.weights,
        str(model.device),
        torch.get_num_threads(),
        planned.engine.func.__name__.lower(),
        clock.seconds,
        warnings,
    )


def _of_other_rounds(planned: Plan, origins: Sequence[Origin]) -> str:
    """A line if parts depend on T, and the run began with another T; else empty."""
    rounds = planned.config.rounds
    before = origins[0].get("rounds", rounds)
    parts = [
        results.named(socket, part)
        for socket, part in planned.sockets.by_name().items()
        if READS_ROUNDS in part.traits
    ]
    if before == rounds or not parts:
        return ""
    return (
        f"rounds={rounds}: the run began with rounds={before}, on which its {' and '.join(parts)} "
        f"depends; with rounds={rounds} from the start it would end with other numbers"
    )


def _warnings(history: Sequence[Mapping[str, float]], data: FederatedData) -> list[str]:
    """A line for each reason to doubt a run's results."""
    classes, targets = data.description.num_classes, data.test.targets
    counts = torch.bincount(targets[targets >= 0].flatten(), minlength=classes)
    share = (counts.max() / counts.sum().clamp(min=1)).item()
    line = learned_nothing(history, classes, share)
    return [] if line is None else [line]


def _run_in_processes(
    config: Config, folder: Path, launch: Launch, early: Early | None
) -> RunResult:
    """Start several processes on this machine, and run in them."""
    with errors_only("fedexp"):  # the first process logs the rest
        plan(config, early)  # raises errors before the processes start
    size = config.engine.processes
    lines, summary, stopped, message = spawn(_run_as_rank, size, config, folder, launch)
    return RunResult(folder, lines, summary, partial(_rebuild_model, config, message), stopped)


def _run_as_rank(
    config: Config, folder: Path, launch: Launch
) -> tuple[bytes, dict[str, Any], str | None, Message]:
    """Run in one of several processes; return (metrics, summary, why it stopped, final message)."""
    result, message = _run(config, folder, launch)
    return result.lines, result.summary, result.stopped, message


def _rebuild_model(config: Config, message: Message) -> ClientModule:
    """The global model of ``message``, on the CPU."""
    engine = config.engine.model_copy(update={"compile": False})
    with errors_only("fedexp"):  # the run has logged the rest
        federation = Federation.on_cpu(plan(config.model_copy(update={"engine": engine})))
    return federation.load(message)


def draw_partition(config: Config, folder: Path, early: Early | None = None) -> list[Path]:
    """Draw the partition without training; write a picture and a table to ``folder``.

    ``early`` has the objects that the early checks built; None to build them here.
    Returns the paths of ``partition.png``, if it could be drawn, and of ``partition.csv``. Raises
    InputError.
    """
    data = load_data(config, plan(config, early).source, torch.device("cpu"))
    folder.mkdir(parents=True, exist_ok=True)
    picture, table = folder / "partition.png", folder / PARTITION
    write_partition(table, data)
    figure = partition_picture(data)
    with leaving_out("partition.png", figure):
        save_picture(picture, figure)
        return [picture, table]
    return [table]
