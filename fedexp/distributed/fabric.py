"""Fabric in one process of a run: its device, and its connection to the other processes."""

import atexit
import logging
import os
from datetime import timedelta
from typing import Any, Literal, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.plugins.precision.amp import MixedPrecision
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import distributed as dist

from fedexp.config.build import locate_kind
from fedexp.config.schema import Engine
from fedexp.distributed import launcher
from fedexp.distributed.meeting import meet
from fedexp.errors import InputError

RENDEZVOUS = "FEDEXP_RENDEZVOUS"
"""Environment variable: the file in which the ranks of one machine meet."""

_TIMEOUT = timedelta(days=1)
"""Longest wait of a rank for others, such as for an evaluation; a dead rank is noticed earlier."""


def make_fabric(engine: Engine) -> Fabric:
    """Return Fabric on the device of this process, connected to the other processes.

    Also makes PyTorch deterministic if the config says so.

    Raises:
        InputError: this machine does not have the device or has too few, the class in
            ``engine.device`` is no accelerator, or ``engine.processes_per_device`` is above 1
            without CUDA.
    """
    for name in ("lightning.fabric", "lightning.pytorch"):  # they log in every process
        logging.getLogger(name).setLevel(logging.WARNING)
    if engine.processes_per_device > 1 and (
        engine.device not in ("auto", "cuda") or not torch.cuda.is_available()
    ):
        raise InputError(
            f"engine.processes_per_device={engine.processes_per_device}: is for CUDA GPUs only; "
            "should be 1 on a CPU, where engine.devices sets the number of processes"
        )
    if engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    torch.use_deterministic_algorithms(engine.deterministic)  # an earlier run may have set it
    find = _other_hardware if "." in engine.device else _known_hardware
    hardware = find(engine)
    try:
        fabric = Fabric(devices=engine.devices, num_nodes=engine.num_nodes, **hardware)
        if engine.processes > 1:
            if not dist.is_initialized() and (store := _store(fabric, engine)):
                _join(fabric, store)
            fabric.launch()
    except InputError:
        raise
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        reason = str(error).partition("\n")[0]
        several = f" engine.devices={engine.devices}" if engine.devices > 1 else ""
        raise InputError(
            f"engine.device={engine.device}{several}: not on this machine ({reason})"
        ) from error
    if fabric.global_rank > 0:
        logging.getLogger("fedexp").setLevel(logging.ERROR)  # the first rank logs for all
    return fabric


def _known_hardware(engine: Engine) -> dict[str, Any]:
    """Fabric's arguments for a CPU or for GPUs with CUDA."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "accelerator": automatic if engine.device == "auto" else engine.device,
        "precision": engine.precision,
        "strategy": _strategy(engine),
        "plugins": [_environment(engine.processes)],
    }


def _other_hardware(engine: Engine) -> dict[str, Any]:
    """Fabric's arguments for the accelerator whose class is ``engine.device``.

    Lightning itself would compute on the CPU, in mixed precision for CUDA. The processes exchange
    tensors of the CPU.
    """
    accelerator = locate_kind("engine.device", engine.device, Accelerator)()
    strategy: SingleDeviceStrategy | DDPStrategy | Literal["auto"] = "auto"
    plugins: list[Any] = [_environment(engine.processes)]
    if accelerator.is_available():  # otherwise Fabric raises the error
        devices = accelerator.get_parallel_devices(accelerator.parse_devices(engine.devices))
        strategy = SingleDeviceStrategy(devices[0])
        if engine.processes > 1:
            strategy = DDPStrategy(
                parallel_devices=devices, process_group_backend="gloo", timeout=_TIMEOUT
            )
        if engine.precision == "bf16-mixed":
            plugins.append(MixedPrecision(engine.precision, devices[0].type))
    return {"accelerator": accelerator, "strategy": strategy, "plugins": plugins}


def cpu_fabric(precision: Literal["32-true", "bf16-mixed"] = "32-true") -> Fabric:
    """Fabric for a single process on the CPU, whatever SLURM or torchrun have set."""
    return Fabric(
        accelerator="cpu", devices=1, precision=precision, plugins=[LightningEnvironment()]
    )


def _strategy(engine: Engine) -> DDPStrategy | Literal["auto"]:
    """Lightning's strategy: how the processes are connected; "auto" for a single process."""
    if engine.processes == 1:
        return "auto"
    if engine.processes_per_device == 1:
        return DDPStrategy(timeout=_TIMEOUT)
    devices = [torch.device("cuda", device) for device in range(engine.devices)]
    return DDPStrategy(
        parallel_devices=[each for each in devices for _ in range(engine.processes_per_device)],
        process_group_backend="gloo",  # NCCL needs a GPU for each process
        timeout=_TIMEOUT,
    )


def _store(fabric: Fabric, engine: Engine) -> Any:
    """The store through which the ranks connect; None if torchrun has made one."""
    if path := os.environ.get(RENDEZVOUS):  # on one machine, a file: this opens no port
        return dist.FileStore(path, fabric.world_size)  # type: ignore[attr-defined]
    this = launcher.this_process()
    if this.started_by != "srun":
        return None
    slurm = _Srun()
    limit_s = engine.meeting_timeout
    return meet(slurm.main_address, slurm.main_port, this.rank, this.size, limit_s)


def _join(fabric: Fabric, store: Any) -> None:
    """Connect to the other ranks through the store."""
    strategy = cast(DDPStrategy, fabric.strategy)
    on_gpu = fabric.device.type == "cuda"
    dist.init_process_group(
        strategy.process_group_backend or ("nccl" if on_gpu else "gloo"),
        store=store,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        timeout=_TIMEOUT,
        device_id=fabric.device if on_gpu else None,
    )
    if on_gpu:
        atexit.register(dist.destroy_process_group)  # NCCL warns if it is left open


def _environment(processes: int) -> ClusterEnvironment:
    # Set explicitly: Lightning would treat any job in a SLURM allocation as one of several.
    if processes == 1:
        return LightningEnvironment()
    if launcher.this_process().started_by == "srun":
        return _Srun()
    return TorchElasticEnvironment()


class _Srun(SLURMEnvironment):
    """The processes that ``srun`` has started; ``launcher`` has checked how many there are.

    Lightning's checks warn in a shell of ``salloc`` that ``srun`` is not used, because they look at
    the job's name, and refuse ``srun --ntasks=2``, which is the same as ``--ntasks-per-node=2`` on
    one machine.
    """

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    @staticmethod
    def _validate_srun_used() -> None:
        pass

    @staticmethod
    def _validate_srun_variables() -> None:
        pass
