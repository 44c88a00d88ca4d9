"""Who has started this process: the user, or torchrun or SLURM as one of several.

Imports nothing slow: it is asked before the job itself begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedexp.errors import InputError

if TYPE_CHECKING:
    from fedexp.config.schema import Engine


@dataclass(frozen=True)
class Start:
    """How this process was started.

    Attributes:
        by: what started it.
        rank: its number among those that were started together.
        size: how many these are.
    """

    by: Literal["user", "torchrun", "srun"]
    rank: int = 0
    size: int = 1


def start() -> Start:
    """As the environment tells it: torchrun's variables, then those of a SLURM step."""
    found = os.environ
    if "TORCHELASTIC_RUN_ID" in found:
        return Start("torchrun", int(found["RANK"]), int(found["WORLD_SIZE"]))
    # In a batch script SLURM_NTASKS is set, too, although srun has not started anything yet.
    if int(found.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return Start("srun", int(found["SLURM_PROCID"]), int(found["SLURM_NTASKS"]))
    return Start("user")


def must_spawn(engine: Engine) -> bool:
    """Whether the processes that the config asks for have yet to be started.

    Raises:
        InputError: others have been started than it asks for, or it asks for several machines.
    """
    found, wanted = start(), engine.processes
    asked = f"engine.devices={engine.devices} engine.num_nodes={engine.num_nodes}"
    if found.size not in (1, wanted):
        raise InputError(f"{asked}: {found.by} has started {found.size} processes, not {wanted}")
    if found.size == 1 and engine.num_nodes > 1:
        raise InputError(
            f"{asked}: has to be started on every machine, with torchrun or in SLURM with srun"
        )
    return found.size < wanted
