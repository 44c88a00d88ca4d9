"""Trains a small federation on the pretended device, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import numpy as np
import torch

from fedexp.config.schema import Config
from fedexp.core.error_notes import innermost
from fedexp.core.messages import Tensors
from fedexp.data.load import load_data
from fedexp.distributed.fabric import make_fabric
from fedexp.distributed.wire import decode, encode
from fedexp.engines.base import Engine
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.testing.comparison import ContractError
from fedexp.testing.federations import configure, resume, sent_after
from fedexp.testing.pretended import Pretended, missing_tool, told_of_waits

_DEVICE = "engine.device=fedexp.testing.pretended.Pretended"
_STEP = Engine._take_step.__code__
_TENSORS, _FAILURE = "tensors", "failure.json"

_Components: TypeAlias = dict[str, Mapping[str, object]]
"""Words about a federation for its errors -> its components; see ``Resources.components``."""

_RULES = {
    "Expected all tensors to be on the same device": "mixes a tensor of the CPU with tensors of "
    "the device; make it a buffer, or move it with core.transfer.to_device",
    "generator but found": "draws on the device with a generator of the CPU; draw on the CPU and "
    "move the numbers with core.transfer.to_device",
    "to numpy": "makes a NumPy array of a tensor on the device; call .cpu() first, and not in a "
    "training step",
    "waits for the device": "waits for the device in each training step, as .item(), a mask as "
    "an index and a copy between CPU and device do; keep it a tensor on the device",
}
"""Words of PyTorch's error -> the rule that the code breaks."""


def sent_from_device(
    overrides: Sequence[str], config_dir: str | Path | None, rounds: int
) -> Tensors:
    """Train for these rounds on the pretended device, with a resume; see ``sent_after``.

    A new process does it, because PyTorch takes no further device after the first backward pass.

    Raises:
        ContractError: a component does what a GPU refuses, or waits for it in a training step. The
            error names the component, its hook and the line.
        InputError: the device cannot be compiled on this machine, or the run is refused.
    """
    if tool := missing_tool():
        raise InputError(f"check_part(device=True): needs {tool}, which is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        job = json.dumps([folder, list(overrides), config_dir and str(config_dir), rounds])
        paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        done = subprocess.run(
            [sys.executable, "-m", __name__, job], env=paths, capture_output=True, text=True
        )
        failure, tensors = Path(folder, _FAILURE), Path(folder, _TENSORS)
        if failure.exists():
            is_ours, line = json.loads(failure.read_text())
            raise ContractError(line) if is_ours else InputError(line)
        if done.returncode or not tensors.exists():
            raise RuntimeError(f"the process with the device failed:\n{done.stderr}")
        content = torch.from_numpy(np.fromfile(tensors, dtype=np.uint8))
        found: Tensors = decode(content, torch.device("cpu"))
        return found


def main(job: str) -> None:
    """In the new process: train, and write the tensors or the error."""
    folder, overrides, config_dir, rounds = json.loads(job)
    Pretended.get_parallel_devices([0])  # before any backward pass
    try:
        tensors = trained([*overrides, _DEVICE], config_dir, rounds)
    except (ContractError, InputError) as error:
        Path(folder, _FAILURE).write_text(
            json.dumps([isinstance(error, ContractError), str(error)])
        )
    else:
        Path(folder, _TENSORS).write_bytes(encode(tensors).numpy().tobytes())


def trained(overrides: Sequence[str], config_dir: str | None, rounds: int) -> Tensors:
    """Train in this process; returns and raises like ``sent_from_device``.

    One federation trains all rounds. The result is of another one, which goes on from the first
    one's checkpoint of round 1. The device must be known to PyTorch, and ``overrides`` must name
    it.
    """
    config = configure(overrides, config_dir)
    components: _Components = {}
    try:
        with ExitStack() as stores, told_of_waits(_refuse_in_steps):
            whole = _federation(config, components, "")
            stores.enter_context(closing(whole.store))
            whole.run_round(1)
            resumed = _federation(config, components, " after a resume")
            stores.enter_context(closing(resumed.store))
            resume(resumed, whole)
            for round in range(2, rounds + 1):
                whole.run_round(round)
                resumed.run_round(round)
            return sent_after(resumed, rounds)
    except InputError:
        raise
    except Exception as error:
        raise ContractError(_line(error, components)) from error


def _federation(config: Config, components: _Components, when: str) -> Federation:
    """A new federation, whose components are noted under ``when``."""
    planned, fabric = plan(config), make_fabric(config.engine)
    components[when] = planned.sockets.by_name()
    federation = Federation(planned, fabric, load_data(config, planned.source, fabric.device))
    components[when] = federation.engine.resources.components
    return federation


def _refuse_in_steps(what: str, frame: FrameType | None) -> None:
    """Raise if a training step waits."""
    while frame is not None:
        if frame.f_code is _STEP:
            raise RuntimeError(f"waits for the device ({what})")
        frame = frame.f_back


def _line(error: Exception, components: _Components) -> str:
    """The error in one line: when, where, and which rule is broken."""
    message = str(error).partition("\n")[0]
    rule = next((rule for words, rule in _RULES.items() if words in message), None)
    what = f"{rule} ({message})" if rule else f"fails ({type(error).__name__}: {message})"
    for when, of_federation in components.items():
        if place := innermost(error.__traceback__, of_federation):
            where = f"{place.whose}: {place.hook}(...), {place.line},"
            return f"on an accelerator{when}, {where} {what}"
    return f"on an accelerator, training {what}"


if __name__ == "__main__":
    main(sys.argv[1])
