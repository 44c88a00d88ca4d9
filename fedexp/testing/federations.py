"""Builds small federations for the checks of parts and measures."""

import copy
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedexp.cli.compose import composed
from fedexp.config.keys import flatten, override_key
from fedexp.config.schema import Config, validate
from fedexp.core.messages import Tensors
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.state.checkpoints import Checkpoints

_T = TypeVar("_T")

TINY = (
    *("algorithm=fedavg", "rounds=4", "clients.count=4", "clients.per_round=2"),
    *("local.epochs=1", "local.batch_size=16", "data=digits", "data.subset=120", "model=mlp"),
    *("measure.personal.of=all", "measure.prototypes.every=1000", "tracking.wandb.mode=disabled"),
    "on_bad_update=raise",  # an update that was left out would not be compared
)
"""The overrides of the checks' tiny experiment, which a caller's overrides can replace."""


def configure(overrides: Sequence[str], config_dir: str | Path | None) -> Config:
    """The config of ``TINY``, changed by these overrides. Raises InputError if it is invalid."""
    given = {override_key(each) for each in overrides}
    all_ = [*(each for each in TINY if override_key(each) not in given), *overrides]
    return validate(composed(all_, config_dir).config)


@contextmanager
def federation_of(config: Config) -> Iterator[Federation]:
    """Build a new federation on the CPU, with new parts; its files are closed after the block."""
    federation = Federation.on_cpu(plan(config))
    with closing(federation.store):
        yield federation


def resume(new: Federation, old: Federation) -> None:
    """Save a checkpoint of ``old``, which has run round 1, and load it into ``new``."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), keep=1)
        checkpoints.save(1, 0.0, old.server, old.measures, old.coordination, old.store.states())
        saved = checkpoints.latest()
        assert saved is not None
        new.restore(saved)


def sent(value: _T) -> _T:
    """A copy that shares no memory with the original, as after sending it over a network."""
    return copy.deepcopy(value)


def scramble() -> None:
    """Set the global random states to arbitrary values, so that draws without a key differ."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(random.SystemRandom().randrange(2**31))


def sent_after(federation: Federation, round: int) -> Tensors:
    """Name -> copy of each tensor that the server would send to clients after this round."""
    message = federation.server.broadcast(round + 1)
    tensors = {"weights": message.weights, **message.extras}
    if message.readdress is not None:
        for client in range(len(federation.data.clients)):
            own = message.to_client(client)
            tensors[f"client {client}"] = flatten({"weights": own.weights, **own.extras})
    return sent(flatten(tensors))
