"""A check of your own part against the contract of a part (``fedexp.core.part``), for its tests::

    from fedexp.testing import check_part

    def test_the_contract() -> None:
        check_part("loss=robust", config_dir="conf")

It trains a few tiny clients on the digits for two rounds, several times, and compares. That takes
seconds and says nothing about what the part is good for.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from omegaconf import open_dict

from fedexp.cli.resume import to_dict
from fedexp.config.schema import Config, validate
from fedexp.core.messages import Message, Tensors, Update
from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import load_data, plan
from fedexp.state.checkpoint import Checkpoints
from fedexp.state.run_folder import METRICS, flatten, override_key
from fedexp.tracking.tracker import Tracker
from fedexp.train import compose

TINY = (
    *("algorithm=fedavg", "rounds=4", "clients.count=4", "clients.per_round=2"),
    *("local.epochs=1", "local.batch_size=16", "data=digits", "data.subset=120", "model=mlp"),
    *("evaluation.personal=all", "tracking.heatmap_every=1000", "tracking.wandb.mode=disabled"),
)
"""What ``check_part`` trains, unless its overrides say otherwise."""

_ROUNDS = 2


class ContractError(AssertionError):
    """A part breaks a rule of its contract."""


def check_part(
    *overrides: str, config_dir: str | Path | None = None, tolerance: float = 1e-4
) -> None:
    """Check the parts that these overrides choose, such as ``"loss=robust"``.

    The rules, in this order:

    1. Two runs with the same seed are the same to the bit: every random draw has a key.
    2. What one half of the part knows of the other has been sent, and so its bytes are counted:
       the result is the same if the server's half and the clients' half are different objects.
    3. A client's update does not depend on who trained before it: nothing of a client is left.
    4. A run that is resumed after a round ends with the same bits as one that is not: the server's
       state is in ``server_state``, that of a client in its memory.
    5. ``engine=vectorized`` gives the weights of ``engine=serial``, or refuses in one line.

    Args:
        overrides: as on the command line; ``TINY`` has the others.
        config_dir: a folder with config groups of your own, as ``--config-dir``.
        tolerance: largest difference of a weight between the two engines.

    Raises:
        ContractError: the first rule that is broken, and by what.
        InputError: the config is invalid.
    """
    config = _config(overrides, config_dir)
    whole = _result(config, _train)
    for run, rule in (
        (_train, "two runs with the same seed differ: a random draw has no key (core.randomness)"),
        (
            _train_apart,
            "one half of the part knows what was not sent to it: what broadcast and report return "
            "is sent and counted",
        ),
        (_train_among_others, "a client's update depends on the client that trained before it"),
        (
            _train_with_a_break,
            "a resumed run differs: the server's state belongs into server_state, that of a "
            "client into its memory",
        ),
    ):
        _compare(whole, config, run, rule)
    try:
        vectorized = _config([*overrides, "engine=vectorized"], config_dir)
        _compare(whole, vectorized, _train, "engine=vectorized differs from serial", tolerance)
    except InputError:
        return  # refused, in one line


def _config(overrides: Sequence[str], config_dir: str | Path | None) -> Config:
    given = {override_key(each) for each in overrides}
    all_ = [*(each for each in TINY if override_key(each) not in given), *overrides]
    composed = compose(all_, config_dir)
    with open_dict(composed):
        del composed["hydra"]
    return validate(to_dict(composed, all_))


def _federation(config: Config) -> Federation:
    """A new federation on the CPU, with new parts."""
    planned, fabric = plan(config), Fabric(accelerator="cpu", devices=1)
    data = load_data(config, planned.source, fabric.device)
    return assemble(planned, fabric, data, Tracker())


_T = TypeVar("_T")
_Run = Callable[[Config], Message]
"""Trains ``_ROUNDS`` rounds in some way; returns what the server would send after them."""


def _train(config: Config) -> Message:
    with _closed(_federation(config)) as federation:
        for round in range(1, _ROUNDS + 1):
            federation.run_round(round)
        return _sent(federation.server.broadcast(_ROUNDS + 1))


def _train_apart(config: Config) -> Message:
    """The server's half is that of one federation, the clients' half that of another."""
    with _closed(_federation(config)) as far, _closed(_federation(config)) as clients:
        for round in range(1, _ROUNDS + 1):
            message = _sent(far.server.broadcast(round))
            cohort = _cohort(far, clients, message)
            far.server.aggregate([_sent(each) for each in clients.engine.train(cohort, message)])
        return _sent(far.server.broadcast(_ROUNDS + 1))


def _train_among_others(config: Config) -> Message:
    """Right before each client's turn another client has its own, which does not count."""
    with _closed(_federation(config)) as federation:
        for round in range(1, _ROUNDS + 1):
            message = federation.server.broadcast(round)
            updates: list[Update] = []
            for client, draws in Counter(_cohort(federation, federation, message)).items():
                _train_in_vain(federation, client, message)
                updates += map(_sent, federation.engine.train([client] * draws, message))
            federation.server.aggregate(updates)
        return _sent(federation.server.broadcast(_ROUNDS + 1))


def _cohort(server: Federation, clients: Federation, message: Message) -> Sequence[int]:
    """The cohort, of which the sampler may ask the clients first."""
    sampler = server.sampler
    asked = sampler.candidates(message.round)
    sampler.observe({client: _sent(a) for client, a in clients.engine.probe(asked, message)})
    return list(server.placement.local_clients(sampler.select(message.round)))


def _train_in_vain(federation: Federation, client: int, message: Message) -> None:
    """Train a client other than this one, and put its state back."""
    resources = federation.engine.resources
    sizes = resources.data.sizes.tolist()
    other = next(c for c, size in enumerate(sizes) if size and c != client)
    before = _sent(dict(resources.store.states()))
    list(federation.engine.train([other], message))
    resources.store.discard(other)
    if other in before:
        resources.store.put(other, before[other])


def _train_with_a_break(config: Config) -> Message:
    """After the first round everything is saved, and a new federation goes on from there."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, METRICS).touch()  # a checkpoint has a copy of it
        checkpoints = Checkpoints(Path(folder), keep=1)
        with _closed(_federation(config)) as first:
            first.run_round(1)
            states = first.engine.resources.store.states()
            checkpoints.save(1, 0.0, first.server, first.evaluator, states)
        saved = checkpoints.latest()
        assert saved is not None
        with _closed(_federation(config)) as second:
            resources = second.engine.resources
            saved.restore(
                second.server,
                second.evaluator,
                resources.store,
                resources.fabric.device,
                second.placement.local_clients,
            )
            second.placement.synchronize()
            for round in range(2, _ROUNDS + 1):
                second.run_round(round)
            return _sent(second.server.broadcast(_ROUNDS + 1))


@contextmanager
def _closed(federation: Federation) -> Iterator[Federation]:
    with closing(federation.engine.resources.store):
        yield federation


def _sent(value: _T) -> _T:
    """A copy that shares no memory, as if it had travelled."""
    return copy.deepcopy(value)


def _result(config: Config, run: _Run) -> Tensors:
    """Every tensor of the message, by name; each run begins with other global random states."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(random.SystemRandom().randrange(2**31))
    message = run(config)
    return flatten({"weights": message.weights, **message.extras})


def _compare(whole: Tensors, config: Config, run: _Run, rule: str, tolerance: float = 0.0) -> None:
    """Raise ContractError with the rule if the run's result is another one."""
    try:
        found = _result(config, run)
    except InputError:
        raise
    except Exception as error:
        raise ContractError(f"{rule} ({type(error).__name__}: {error})") from error
    if where := next(_differences(whole, found, tolerance), None):
        raise ContractError(f"{rule} ({where})")


def _differences(one: Tensors, other: Tensors, tolerance: float) -> Iterator[str]:
    names: Iterable[str] = sorted(one.keys() | other.keys())
    for name in names:
        if name not in one or name not in other or one[name].shape != other[name].shape:
            yield f"{name} is not the same tensor"
        elif not torch.equal(one[name], other[name]):
            gap = (one[name].double() - other[name].double()).abs().max().item()
            if not gap <= tolerance:
                yield f"{name} differs by {gap:.2g}"
