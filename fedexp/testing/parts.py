"""``check_part``: whether a part keeps the contract."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from fedexp.config.compatibility.traits import CHOOSES_BY_DEVICE
from fedexp.config.schema import Config
from fedexp.coordination.base import Coordination
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.results import WrongResultError
from fedexp.engines.stacking_errors import StackingError
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import Plan, plan
from fedexp.testing.comparison import ContractError, compare
from fedexp.testing.federations import configure, federation_of, resume, scramble, sent, sent_after
from fedexp.testing.interrupted import Interrupted, other_client
from fedexp.testing.on_device import sent_from_device

_ROUNDS = 2
_Run = Callable[[Federation, Config], None]
"""A function that trains a new federation of this config for ``_ROUNDS`` rounds."""


def check_part(
    *overrides: str,
    config_dir: str | Path | None = None,
    tolerance: float = 1e-4,
    device: bool = False,
) -> None:
    """Check the parts that these overrides choose, such as ``"loss=robust"``.

    The rules, in this order:

    1. Two runs with the same seed give bit-identical results, because every random draw has a key
       (``core.randomness``).
    2. The server's half and the clients' half of the part share only the tensors that they send, so
       that all bytes are counted. If the halves are different objects, the result is the same.
    3. A client's update does not depend on the client that trained before.
    4. A run that is resumed after a round gives bit-identical results to an uninterrupted run,
       because ``server_state`` has the server's state, and a client's memory has its state.
    5. A client's local training reads nothing that ``begin`` of another client overwrites: every
       value that differs between clients is a parameter or a registered buffer. If
       ``engine=vectorized`` refuses the part, this rule is not checked.
    6. ``engine=vectorized`` gives the same weights as ``engine=serial``, up to ``tolerance``, or
       refuses the part with an InputError.
    7. With ``device``: on an accelerator the weights have the same bits, also after a resume, no
       call mixes tensors of the CPU and of the accelerator, and no training step waits for the
       accelerator. It is a pretended one, ``fedexp.testing.pretended``, which computes like the
       CPU.

    Args:
        overrides: overrides as on the command line, in addition to ``TINY``.
        config_dir: a folder with your own config groups, as for ``--config-dir``.
        tolerance: largest allowed difference of a weight between the two engines.
        device: whether to check rule 7. It takes a process of its own, and half a minute the first
            time, when the device is compiled; that needs a C++ compiler and ninja.

    Raises:
        ContractError: names the first broken rule and the value that breaks it.
        InputError: a hook returns a wrong result, an update is not finite, the config is invalid,
            chosen clients may not train or send their updates later, as with ``faults`` or a
            deadline, or the device cannot be compiled.
    """
    config = configure(overrides, config_dir)
    _check_rounds(plan(config))
    expected = _sent_after(_train, config)
    for run, rule in _RULES.items():
        compare(expected, partial(_sent_after, run, config), rule)
    if device:
        sent_there = partial(sent_from_device, overrides, config_dir, _ROUNDS)
        compare(expected, sent_there, "on an accelerator the weights differ from the CPU's")
    try:
        vectorized = configure([*overrides, "engine=vectorized"], config_dir)
        plan(vectorized)
        compare(expected, partial(_sent_after, _train_interrupted, config), _READS_OTHERS)
        run_stacked = partial(_sent_after, _train, vectorized)
        compare(expected, run_stacked, _PADDED, tolerance)
    except StackingError as error:
        raise ContractError(str(error)) from error
    except WrongResultError:
        raise
    except InputError:
        return  # ``engine=vectorized`` refuses the part


def _check_rounds(planned: Plan) -> None:
    """Raise InputError unless every chosen client trains and sends its update in its round."""
    by_device = CHOOSES_BY_DEVICE in planned.system.traits
    for options, is_chosen in {
        "availability, system.deadline, system.invite": by_device,
        "coordination": type(planned.coordination) is not Coordination,
        "faults": type(planned.faults) is not Faults,
    }.items():
        if is_chosen:
            raise InputError(
                f"{options}: check_part needs the default, so that whole cohorts train"
            )


def _train(federation: Federation, config: Config) -> None:
    for round in range(1, _ROUNDS + 1):
        federation.run_round(round)


def _train_apart(federation: Federation, config: Config) -> None:
    """Train with the server of this federation and the clients of another federation."""
    with federation_of(config) as clients:
        for round in range(1, _ROUNDS + 1):
            message = sent(federation.server.send(round))
            cohort = _cohort(federation, clients, message)
            _step(federation, map(sent, clients.engine.train(cohort, message)), round)


def _train_among_others(federation: Federation, config: Config) -> None:
    """Before each client trains, train another client and discard the update of that client."""
    for round in range(1, _ROUNDS + 1):
        message = federation.server.send(round)
        updates: list[Update] = []
        for client, draws in Counter(_cohort(federation, federation, message)).items():
            _train_in_vain(federation, client, message)
            updates += map(sent, federation.engine.train([client] * draws, message))
        _step(federation, updates, round)


def _step(federation: Federation, updates: Iterable[Update], round: int) -> None:
    """Let the server take a step with the updates that are finite, as in a run."""
    for update in updates:
        if federation.quarantine.accepts(update, round):
            federation.server.add(update)
    federation.server.step(partial(federation.quarantine.accepts_model, round=round))


def _train_interrupted(federation: Federation, config: Config) -> None:
    """Train with ``Interrupted``, which begins another client before each client trains."""
    federation.engine = Interrupted(federation.engine.resources)
    _train(federation, config)


def _train_with_a_break(federation: Federation, config: Config) -> None:
    """Continue from the checkpoint of another federation, which has trained the first round."""
    with federation_of(config) as first:
        first.run_round(1)
        resume(federation, first)
    for round in range(2, _ROUNDS + 1):
        federation.run_round(round)


def _cohort(server: Federation, clients: Federation, message: Message) -> Sequence[int]:
    """The cohort that the sampler of ``server`` chooses, after ``clients`` answers its probes."""
    sampler = server.sampler
    asked = sampler.candidates(message.round)
    sampler.observe({client: sent(a) for client, a in clients.engine.probe(asked, message)})
    return list(server.placement.local_clients(sampler.select(message.round)))


def _train_in_vain(federation: Federation, client: int, message: Message) -> None:
    """Train a client other than ``client``, and restore the trained client's state."""
    resources = federation.engine.resources
    other = other_client(federation.engine, client)
    before = sent(dict(resources.store.states()))
    list(federation.engine.train([other], message))
    resources.store.discard(other)
    if other in before:
        resources.store.put(other, before[other])


def _sent_after(run: _Run, config: Config) -> Tensors:
    """The tensors that the server sends after ``run``, from arbitrary global random states."""
    scramble()
    with federation_of(config) as federation:
        run(federation, config)
        return sent_after(federation, _ROUNDS)


_RULES: dict[_Run, str] = {
    _train: "two runs with the same seed differ: a random draw has no key (core.randomness)",
    _train_apart: "one half of the part uses data that the other half did not send: return them "
    "from broadcast or report",
    _train_among_others: "a client's update depends on the client that trained before it",
    _train_with_a_break: "a resumed run differs: keep the server's state in server_state, and a "
    "client's state in its memory",
}
"""Way to train -> what is wrong if its result differs from that of ``_train``."""

_PADDED = (
    "engine=vectorized differs from serial; it pads batches, so take a loss's mean by batch.mean"
)

_READS_OTHERS = (
    "a client's training depends on the client whose begin was called last: what differs between "
    "clients must be a parameter or a registered buffer, not an attribute"
)
