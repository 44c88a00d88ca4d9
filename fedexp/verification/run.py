"""Checks a run: its records must agree, and its first rounds are trained again."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedexp.core.saved_state import predicting
from fedexp.deployment.flower.record import FILE as FEDERATION
from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.runs import is_within
from fedexp.state.atomic import write_atomically
from fedexp.state.files import load_tensors
from fedexp.state.run_folder import DATA, METRICS, PARTITION, SUMMARY, model_files
from fedexp.tracking.origin import changed_parts, later_code
from fedexp.tracking.summary import digest
from fedexp.verification.again import Again, config_here, train_again
from fedexp.verification.claims import Claim, contradictions, read_claim
from fedexp.verification.compare import TOLERANCE, first_difference
from fedexp.verification.names import Compose, checked_names
from fedexp.verification.origins import (
    has_one_engine,
    has_other_precision,
    is_same_kind,
    later_environment,
    other_code,
    other_data,
    other_environment,
)
from fedexp.verification.own_code import ASKS, importable, listing, own_code
from fedexp.verification.places import unread
from fedexp.verification.verdict import Outcome, Verdict

_ON_NODES = (
    f"{FEDERATION}: the clients were on nodes of Flower, so {PARTITION}, the data's digest and "
    "metrics that the server lacks are not compared"
)

_LOST = (
    f"{FEDERATION}: a node's reply or state was lost or refused in round {{}}, which no simulation "
    "repeats"
)


@dataclass(frozen=True)
class Ways:
    """How to check.

    Attributes:
        rounds: the number of rounds to train again.
        cache: the folder for decoded data.
        places: key of a file or folder -> its place on this machine, see ``places.KEYS``.
        runs_own_code: whether own code may run.
        to: a folder for the rounds that were trained again; None to keep nothing.
        jobs: the number of runs of a sweep to check.
        seed: draws these runs.
        compose: composes the overrides of a run, to compare them with its config; None: do not.
    """

    rounds: int
    cache: str
    places: Mapping[str, str] = field(default_factory=dict)
    runs_own_code: bool = False
    to: Path | None = None
    jobs: int = 3
    seed: int = 0
    compose: Compose | None = None


def verify_run(folder: Path, ways: Ways, keep: Path | None = None) -> Verdict:
    """Check the run in ``folder``; write the rounds that were trained again to ``keep``."""
    place = printable(str(folder))
    try:
        claim = read_claim(folder)
        wrong, texts = list(contradictions(claim)), own_code(claim)
    except InputError as error:
        return Verdict(place, Outcome.UNKNOWN, "cannot be compared", [str(error)])
    told = [] if texts is None else listing(claim, texts, shows=not ways.runs_own_code)
    if texts is not None and not ways.runs_own_code:
        line = f"needs {ASKS} to be trained again; nothing was run"
        return _verdict(place, Outcome.UNKNOWN, line, wrong, told)
    before, idle = (folder / METRICS).read_bytes(), unread(claim.run.config, ways.places)
    try:
        again = _train(claim, texts, ways)
    except InputError as error:
        line = "cannot be trained again"
        return _verdict(place, Outcome.UNKNOWN, line, wrong, [*told, str(error), *idle])
    if (folder / METRICS).read_bytes() != before:
        wrong.append(f"{METRICS}: was changed while the run was trained again")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        write_atomically(keep / METRICS, again.lines)
    try:
        found = _of_rounds(claim, compared(place, claim, again), ways.rounds)
    except InputError as error:  # a saved model is damaged
        return _verdict(place, Outcome.UNKNOWN, "cannot be compared", wrong, [*told, str(error)])
    contradicting, other = checked_names(claim, again.origin, ways.compose)
    details = [*told, *found.details, *other, *idle]
    return _verdict(place, found.outcome, found.line, [*wrong, *contradicting], details)


def _verdict(
    place: str, outcome: Outcome, line: str, wrong: list[str], details: Iterable[str]
) -> Verdict:
    """The verdict, which is DIFFERS if records contradict each other."""
    if wrong:
        outcome, line = Outcome.DIFFERS, f"its records disagree; {line}"
    return Verdict(place, outcome, line, [*wrong, *map(printable, details)])


def _train(claim: Claim, texts: Mapping[str, str] | None, ways: Ways) -> Again:
    """Train again; any error becomes an InputError of one line, as the config may be anything."""
    if 1 in claim.lost:
        raise InputError(_LOST.format(1))
    rounds = min(ways.rounds, _comparable(claim))
    started = claim.origins[0]["environment"] if claim.origins else claim.run.summary or {}
    try:
        with importable(texts) if texts else nullcontext():
            begun = {**claim.run.config, "rounds": _rounds_at_first(claim)}
            config = config_here(begun, started, ways.cache, ways.places)
            return train_again(config, rounds, claim.on_nodes)
    except InputError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"training again failed ({type(error).__name__}: {reason})") from error


def _comparable(claim: Claim) -> int:
    """The number of rounds before a node was lost, or code, precision or ``rounds`` changed."""
    first = claim.origins[0] if claim.origins else {}
    later: list[int] = [
        each["from_round"] - 1
        for each in claim.origins[1:]
        if changed_parts(first["code"], each["code"])
        or has_other_precision(first, each)
        or each.get("rounds") != first.get("rounds")
    ]
    later += [round - 1 for round in claim.lost]
    return min([*later, max((each.round for each in claim.records), default=1)])


def _rounds_at_first(claim: Claim) -> int:
    """The key ``rounds`` of the run's first start; schedules and parts depend on it."""
    rounds: int = claim.run.config["rounds"]
    first = claim.origins[0].get("rounds") if claim.origins else None
    return first if type(first) is int and first > 0 else rounds


def _of_rounds(claim: Claim, found: Verdict, rounds: int) -> Verdict:
    """The verdict on ``rounds`` rounds: UNKNOWN if some of them are not ``_comparable``."""
    last = max((each.round for each in claim.records), default=1)
    if found.outcome != Outcome.SAME or _comparable(claim) >= min(rounds, last):
        return found
    what = "other code, another precision or another number of rounds, or lost nodes"
    line = f"{found.line}; later rounds had {what}, and cannot be compared"
    lost = [_LOST.format(round) for round in claim.lost]
    details = [*later_code(claim.origins), *lost, *found.details]
    return Verdict(found.place, Outcome.UNKNOWN, line, details)


def compared(place: str, claim: Claim, again: Again) -> Verdict:
    """Compare a claim with its repetition."""
    last = max(each.round for each in again.records)
    part = [each for each in claim.records if each.round <= last]
    known, details, exact = _origins(claim, again)
    knows_data = bool(claim.origins) and not claim.on_nodes
    data = list(other_data(claim.origins[0], again.origin)) if knows_data else []
    details += [] if exact else data
    if claim.on_nodes:
        details.append(_ON_NODES)
    differs = first_difference(part, again.records, fewer=claim.on_nodes)
    through = f"through round {last} of {len(claim.records)}"
    wrong = [*_partition(claim, again), *(data if exact else [])]
    if differs is None or exact:
        wrong += [*_facts(claim, again), *_weights(claim, again)]
    if differs is None and not wrong:
        return Verdict(place, Outcome.SAME, f"the same bits {through}", details)
    near = first_difference(part, again.records, TOLERANCE, claim.on_nodes)
    if near is None and not exact and not wrong:
        line = f"the same {through}, up to {TOLERANCE:.0%} or {TOLERANCE}, which is the tolerance"
        return Verdict(place, Outcome.SAME, f"{line} {known}", [f"bits: {differs}", *details])
    if differs is None:
        return Verdict(place, Outcome.DIFFERS, wrong[0], [*wrong[1:], *details])
    reasons = [*wrong, *details] or ["no difference in code, data or environment is known"]
    said = differs if exact else near or differs
    return Verdict(place, Outcome.DIFFERS, f"differs in {said}", reasons)


def _origins(claim: Claim, again: Again) -> tuple[str, list[str], bool]:
    """On which kind of machine a tolerance holds; what differs; whether bits must be the same."""
    now, config = again.origin, claim.run.config
    if not claim.origins:
        summary = claim.run.summary or {}
        was: dict[str, Any] = {**summary.get("versions", {})}
        was |= {key: summary[key] for key in ("device", "threads") if key in summary}
        was.pop("fedexp", None)
        lines = list(other_environment(was, now["environment"]))
        return "for a run that has not recorded its machine", lines, False
    first = claim.origins[0]
    was = first["environment"]
    lines = [*other_code(first, now), *other_environment(was, now["environment"])]
    lines += later_environment(claim.origins)
    last, engine = again.records[-1].round, config["engine"]
    compared = [each["environment"] for each in claim.origins if each["from_round"] <= last]
    same_kind = all(is_same_kind(each, now["environment"]) for each in compared)
    processes = engine["devices"] * engine["num_nodes"] * engine["processes_per_device"]
    alone = all(each.get("processes", processes) == 1 for each in compared)
    deterministic = all(each.get("deterministic", engine["deterministic"]) for each in compared)
    is_repeatable = was.get("device") == "cpu" or deterministic
    is_repeatable = is_repeatable and alone and has_one_engine(claim.origins)
    where = "on another kind of machine" if is_repeatable else "for such runs"
    return where, lines, same_kind and is_repeatable


def _partition(claim: Claim, again: Again) -> list[str]:
    is_same = claim.partition is None or claim.partition == again.partition
    return [] if is_same else [f"{PARTITION}: differs from the partition of this config and seed"]


def _facts(claim: Claim, again: Again) -> Iterator[str]:
    """A line for each fact about the data that both name, with another value."""
    for key in sorted(claim.facts.keys() & again.facts.keys()):
        if claim.facts[key] != again.facts[key]:
            yield printable(f"{DATA}: {key} is {claim.facts[key]}, but it is {again.facts[key]}")


def _weights(claim: Claim, again: Again) -> Iterator[str]:
    """A line for each model that differs, if all rounds were trained again."""
    is_whole = again.records[-1].round == claim.run.config["rounds"]
    if again.weights_digest is None or not claim.run.finished or not is_whole:
        return
    claimed = (claim.run.summary or {}).get("weights_digest")
    if claimed not in (None, again.weights_digest):
        yield f"{SUMMARY}: weights_digest differs from the weights that were trained again"
    folder = claim.run.folder
    for path in model_files(folder):
        if not is_within(path, folder):
            continue  # a link that is not followed
        if digest(predicting(load_tensors(path))) != again.models.get(path.stem):
            name = path.relative_to(folder)
            yield printable(f"{name}: differs from the model that was trained again")
