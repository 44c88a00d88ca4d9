"""How this process was started: alone by the user, or as one of several by torchrun or SLURM.

Imports nothing slow, because the command line uses it before the job begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedexp.errors import InputError

if TYPE_CHECKING:
    from fedexp.config.schema import Engine


@dataclass(frozen=True)
class ProcessInfo:
    """How this process was started.

    Attributes:
        started_by: the program that started this process.
        rank: the number of this process among the processes started together.
        size: the number of processes started together.
    """

    started_by: Literal["user", "torchrun", "srun"]
    rank: int = 0
    size: int = 1


def this_process() -> ProcessInfo:
    """How this process was started, by the environment variables of torchrun, then of SLURM."""
    found = os.environ
    if "TORCHELASTIC_RUN_ID" in found:
        return ProcessInfo("torchrun", int(found["RANK"]), int(found["WORLD_SIZE"]))
    # SLURM_NTASKS is also set in a batch script, before srun has started a process.
    if int(found.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return ProcessInfo("srun", int(found["SLURM_PROCID"]), int(found["SLURM_NTASKS"]))
    return ProcessInfo("user")


def must_spawn(engine: Engine) -> bool:
    """Whether this process must start the other processes of the run.

    Raises:
        InputError: torchrun or SLURM has started several processes, but not as many as the config
            asks for; or the config asks for several machines, and only this process was started.
    """
    found, wanted = this_process(), engine.processes
    asked = f"engine.devices={engine.devices} engine.num_nodes={engine.num_nodes}"
    if engine.processes_per_device > 1:
        asked += f" engine.processes_per_device={engine.processes_per_device}"
    if found.size not in (1, wanted):
        raise InputError(
            f"{asked}: {found.started_by} has started {found.size} processes, not {wanted}"
        )
    if found.size == 1 and engine.num_nodes > 1:
        raise InputError(
            f"{asked}: start fedexp on every machine, with torchrun or in SLURM with srun"
        )
    return found.size < wanted
