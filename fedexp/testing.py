"""Checks of your own part (``fedexp.core.part``) or measure (``fedexp.measures.measure``)::

    from fedexp.testing import check_measure, check_part

    def test_the_contract() -> None:
        check_part("loss=robust", config_dir="conf")
        check_measure("+measure=drift", config_dir="conf")

They train a few tiny clients on the digits for two or three rounds, several times, and compare.
That takes seconds. It checks the contract, not whether the idea is good.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from omegaconf import open_dict
from torch import Tensor

from fedexp.config.composed import to_dict
from fedexp.config.keys import flatten, override_key
from fedexp.config.schema import Config, validate
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.reducible import Reducible
from fedexp.data.load import load_data
from fedexp.distributed.ranks import Ranks
from fedexp.distributed.wire import decode, encode
from fedexp.drawing.data_figure import DataFigure
from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.measures.measure import Measure
from fedexp.runtime.assembly import assemble
from fedexp.runtime.plan import plan
from fedexp.state.checkpoint import Checkpoints
from fedexp.tracking.tracker import Record, Tracker
from fedexp.train import compose

TINY = (
    *("algorithm=fedavg", "rounds=4", "clients.count=4", "clients.per_round=2"),
    *("local.epochs=1", "local.batch_size=16", "data=digits", "data.subset=120", "model=mlp"),
    *("measure.personal.of=all", "measure.prototypes.every=1000", "tracking.wandb.mode=disabled"),
)
"""The overrides of the tiny experiment; the caller's overrides replace them."""

_ROUNDS = 2
_CPU = torch.device("cpu")
_MEASURED_ROUNDS = "rounds=3"
"""So that a measure's first, middle and last round differ."""


class ContractError(AssertionError):
    """A part or a measure breaks a rule of its contract."""


def check_part(
    *overrides: str, config_dir: str | Path | None = None, tolerance: float = 1e-4
) -> None:
    """Check the parts that these overrides choose, such as ``"loss=robust"``.

    The rules, in this order:

    1. Two runs with the same seed are the same to the bit: every random draw has a key.
    2. The halves of the part share only what they send, so all bytes are counted: the result is
       the same if the server's half and the clients' half are different objects.
    3. A client's update does not depend on the client that trained before it.
    4. A run that is resumed after a round ends with the same bits as an uninterrupted run: the
       server's state is in ``server_state``, a client's state in its memory.
    5. ``engine=vectorized`` gives the weights of ``engine=serial``, or refuses in one line.

    Args:
        overrides: changes of the overrides in ``TINY``, as on the command line.
        config_dir: a folder with config groups of your own, as ``--config-dir``.
        tolerance: largest difference of a weight between the two engines.

    Raises:
        ContractError: the first rule that is broken, and by what.
        InputError: the config is invalid.
    """
    config = _config(overrides, config_dir)
    expected = _sent_after(_train, config)
    for run, rule in (
        (_train, "two runs with the same seed differ: a random draw has no key (core.randomness)"),
        (
            _train_apart,
            "one half of the part uses data that the other half did not send: return them from "
            "broadcast or report",
        ),
        (_train_among_others, "a client's update depends on the client that trained before it"),
        (
            _train_with_a_break,
            "a resumed run differs: keep the server's state in server_state, and a client's state "
            "in its memory",
        ),
    ):
        _compare(expected, partial(_sent_after, run, config), rule)
    try:
        vectorized = _config([*overrides, "engine=vectorized"], config_dir)
        run_stacked = partial(_sent_after, _train, vectorized)
        _compare(expected, run_stacked, "engine=vectorized differs from serial", tolerance)
    except InputError:
        return  # refused, in one line


def check_measure(*overrides: str, config_dir: str | Path | None = None) -> None:
    """Check the measures that these overrides add, such as ``"+measure=drift"``.

    The rules, in this order:

    1. Two runs with the same seed record the same metrics, tables and figures: every random draw
       has a key. Metrics ``time/*`` may differ.
    2. Training is the same to the bit with and without the measure.
    3. A run that is resumed after its first round records the same as an uninterrupted run: the
       state that later rounds need is in ``state_dict``.
    4. A measure with a ``contribution`` finds the same, up to rounding, if each of two processes
       observes half of the updates.
    5. Each declared headline is measured in some round, and is always a finite number.

    Args:
        overrides: changes of the overrides in ``TINY``, as on the command line. If they add no
            measure, the config's measures are checked.
        config_dir: a folder with config groups of your own, as ``--config-dir``.

    Raises:
        ContractError: the first rule that is broken, and by what.
        InputError: the config is invalid.
    """
    config = _config([_MEASURED_ROUNDS, *overrides], config_dir)
    usual = _config([], None).measure.keys()
    kept = usual if config.measure.keys() - usual else {"training"}
    measures = {n: each for n, each in plan(config).measures.items() if n not in kept}
    records, weights = _recorded(config)
    found = _shown(records)
    _compare(
        found,
        lambda: _shown(_recorded(config)[0]),
        "two runs with the same seed differ: a random draw has no key (core.randomness)",
    )
    nodes = {name: node for name, node in config.measure.items() if name in kept}
    without = config.model_copy(update={"measure": nodes, "objective": "train/loss"})
    _compare(
        _recorded(without)[1],
        lambda: weights,
        "training differs with the measure, which must change nothing",
    )
    _compare(
        found,
        lambda: _shown(_recorded_with_a_break(config)),
        "a resumed run differs: return the state that later rounds need from state_dict",
    )
    reduced = [n for n, m in measures.items() if type(m).contribution is not Measure.contribution]
    if reduced:
        _compare(
            found,
            lambda: _shown(_recorded_in_halves(config, reduced)),
            "two processes differ: return the sums over updates from contribution",
            tolerance=1e-9,
        )
    for measure in measures.values():
        _check_headlines(measure.headlines, records)


def _config(overrides: Sequence[str], config_dir: str | Path | None) -> Config:
    given = {override_key(each) for each in overrides}
    all_ = [*(each for each in TINY if override_key(each) not in given), *overrides]
    composed = compose(all_, config_dir)
    with open_dict(composed):
        del composed["hydra"]
    return validate(to_dict(composed, all_))


@contextmanager
def _federation(config: Config) -> Iterator[Federation]:
    """A new federation on the CPU, with new parts; closed when the block ends."""
    planned, fabric = plan(config), Fabric(accelerator="cpu", devices=1)
    data = load_data(config, planned.source, fabric.device)
    federation = assemble(planned, fabric, data, Tracker())
    with closing(federation.store):
        yield federation


_T = TypeVar("_T")
_Run = Callable[[Config], Message]
"""Trains ``_ROUNDS`` rounds in some way; returns what the server would send after them."""


def _train(config: Config) -> Message:
    with _federation(config) as federation:
        for round in range(1, _ROUNDS + 1):
            federation.run_round(round)
        return _sent(federation.server.broadcast(_ROUNDS + 1))


def _train_apart(config: Config) -> Message:
    """Train the clients of one federation for the server of another."""
    with _federation(config) as far, _federation(config) as clients:
        for round in range(1, _ROUNDS + 1):
            message = _sent(far.server.broadcast(round))
            cohort = _cohort(far, clients, message)
            for update in clients.engine.train(cohort, message):
                far.server.add(_sent(update))
            far.server.step()
        return _sent(far.server.broadcast(_ROUNDS + 1))


def _train_among_others(config: Config) -> Message:
    """Train some other client before each one, and discard its update."""
    with _federation(config) as federation:
        for round in range(1, _ROUNDS + 1):
            message = federation.server.broadcast(round)
            updates: list[Update] = []
            for client, draws in Counter(_cohort(federation, federation, message)).items():
                _train_in_vain(federation, client, message)
                updates += map(_sent, federation.engine.train([client] * draws, message))
            for update in updates:
                federation.server.add(update)
            federation.server.step()
        return _sent(federation.server.broadcast(_ROUNDS + 1))


def _cohort(server: Federation, clients: Federation, message: Message) -> Sequence[int]:
    """The cohort; the sampler may first ask clients for answers."""
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
    with _federation(config) as first:
        first.run_round(1)
        with _resumed(config, first) as second:
            for round in range(2, _ROUNDS + 1):
                second.run_round(round)
            return _sent(second.server.broadcast(_ROUNDS + 1))


@contextmanager
def _resumed(config: Config, first: Federation) -> Iterator[Federation]:
    """A new federation with what a checkpoint keeps of ``first`` after its first round."""
    with tempfile.TemporaryDirectory() as folder, _federation(config) as second:
        checkpoints = Checkpoints(Path(folder), keep=1)
        checkpoints.save(1, 0.0, first.server, first.measures, first.store.states())
        saved = checkpoints.latest()
        assert saved is not None
        device = second.engine.resources.fabric.device
        clients = second.placement.local_clients
        saved.restore(second.server, second.measures, second.store, device, clients)
        second.placement.synchronize()
        yield second


class _Recorder(Tracker):
    """Keeps all records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        self.records.append(record)


def _recorded(config: Config) -> tuple[list[Record], Tensors]:
    """The records of a whole run, and every tensor of the message that would follow."""
    _scramble()
    recorder = _Recorder()
    with _federation(config) as federation:
        federation.tracker = recorder
        federation.run(config.rounds)
        return recorder.records, _tensors(_sent(federation.server.broadcast(config.rounds + 1)))


def _recorded_with_a_break(config: Config) -> list[Record]:
    """The records of a run that ends after its first round, and of another that goes on."""
    _scramble()
    recorder = _Recorder()
    with _federation(config) as first:
        first.tracker = recorder
        first.run(config.rounds, stops_after=lambda round: round == 1)
        with _resumed(config, first) as second:
            second.tracker = recorder
            second.run(config.rounds, done=1)
    return recorder.records


def _shown(records: Sequence[Record]) -> dict[str, Any]:
    """Name -> value of everything in the records that does not depend on the time."""
    shown: dict[str, Any] = {}
    for record in records:
        found: dict[str, Any] = {
            n: v for n, v in record.metrics.items() if not n.startswith("time/")
        }
        found |= {f"the accuracy of {name}": value for name, value in record.per_class.items()}
        for name, table in record.tables.items():
            found |= {f"column {column} of {name}": list(v) for column, v in table.items()}
        for name, figure in record.figures.items():
            data = figure.data if isinstance(figure, DataFigure) else {}
            found |= {f"figure {name}": None}
            found |= {f"{key} of figure {name}": np.asarray(v).tolist() for key, v in data.items()}
        shown |= {f"round {record.round}: {name}": value for name, value in found.items()}
    return shown


def _check_headlines(headlines: Mapping[str, str], records: Sequence[Record]) -> None:
    """Raise ContractError if a headline is never measured, or not always finite."""
    for name in headlines:
        values = [record.metrics[name] for record in records if name in record.metrics]
        if not values:
            raise ContractError(f"the headline {name} is measured in no round")
        if bad := [value for value in values if not math.isfinite(value)]:
            raise ContractError(f"the headline {name} is {bad[0]}; leave it out where it has none")


class _TwoProcesses(Ranks):
    """Reduces measures as two processes would; the second one's measures are ``twins``.

    They observe every other update. The measures of the run observe the rest.
    """

    def __init__(self, measures: Sequence[Measure], twins: Sequence[Measure]) -> None:
        self._pairs = list(zip(measures, twins, strict=True))
        for pair in self._pairs:
            _share(*pair)

    def all_reduce(self, parties: Sequence[Reducible]) -> None:
        """Give both measures of each pair the sum of both."""
        for pair in self._pairs:
            shares = [each.contribution() for each in pair]
            sums: Tensors = {}
            for name, value in chain(*(share.sums.items() for share in shares)):
                sums[name] = sums[name] + value.double() if name in sums else value.double()
            for each in pair:
                each.set_reduced(_sent(sums), decode(encode([s.items for s in shares]), _CPU))


def _share(measure: Measure, twin: Measure) -> None:
    """Let the twin begin the rounds of ``measure``, and observe every other update instead."""
    begin_round, turns = measure.begin_round, cycle([measure.observe, twin.observe])

    def begin_both(message: Message) -> None:
        begin_round(message)
        twin.begin_round(message)

    vars(measure).update(begin_round=begin_both, observe=lambda update: next(turns)(update))


def _recorded_in_halves(config: Config, names: Iterable[str]) -> list[Record]:
    """The records of a run in which two copies of each named measure share the updates."""
    _scramble()
    recorder = _Recorder()
    with _federation(config) as federation, _federation(config) as other:
        pairs = [(federation.measures[name], other.measures[name]) for name in names]
        federation.ranks = _TwoProcesses(*zip(*pairs, strict=True))
        federation.tracker = recorder
        federation.run(config.rounds)
    return recorder.records


def _sent(value: _T) -> _T:
    """A copy that shares no memory, as after sending."""
    return copy.deepcopy(value)


def _sent_after(run: _Run, config: Config) -> Tensors:
    """Every tensor of the message, by name; each run begins with other global random states."""
    _scramble()
    return _tensors(run(config))


def _scramble() -> None:
    """Set the global random states to anything."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(random.SystemRandom().randrange(2**31))


def _tensors(message: Message) -> Tensors:
    """Every tensor of the message, by name."""
    return flatten({"weights": message.weights, **message.extras})


def _compare(
    expected: Mapping[str, Any],
    run: Callable[[], Mapping[str, Any]],
    rule: str,
    tolerance: float = 0.0,
) -> None:
    """Raise ContractError with the rule if ``run`` fails or returns other values."""
    try:
        found = run()
    except InputError:
        raise
    except Exception as error:
        raise ContractError(f"{rule} ({type(error).__name__}: {error})") from error
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            raise ContractError(f"{rule} ({name} is absent once)")
        if difference := _difference(expected[name], found[name], tolerance):
            raise ContractError(f"{rule} ({name} {difference})")


def _difference(one: Any, other: Any, tolerance: float) -> str | None:
    """How two values differ, in words; None if they do not.

    The tolerance is absolute for tensors, and relative for numbers.
    """
    if not isinstance(one, Tensor):
        return None if _alike(one, other, tolerance) else f"is {one} and {other}"
    if one.shape != other.shape:
        return f"has the shapes {tuple(one.shape)} and {tuple(other.shape)}"
    if torch.equal(one, other):
        return None
    gap = (one.double() - other.double()).abs().max().item()
    return None if gap <= tolerance else f"differs by {gap:.2g}"


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether both are equal, or lists of such values; NaN is equal to itself."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_alike(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=tolerance)
    return bool(one == other)
