"""A run's folder as a claim: its records, and whether they agree with each other."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedexp.config.keys import flatten
from fedexp.config.moved_modules import with_moved
from fedexp.deployment.flower.record import FILE as FEDERATION
from fedexp.deployment.flower.record import read_record
from fedexp.errors import DAMAGED, InputError, readable
from fedexp.reporting.runs import Run, is_within, read_run
from fedexp.state.files import load_tensors
from fedexp.state.run_folder import (
    DATA,
    FILE_NAME,
    FINAL,
    METRICS,
    PARTITION,
    SUMMARY,
    read_small_file,
    saved_weights,
)
from fedexp.tracking.jsonl import as_bytes, parse_records
from fedexp.tracking.origin import FILE_NAME as ORIGIN
from fedexp.tracking.origin import Origin, read_origins
from fedexp.tracking.summary import RECORDED, digest, file_digests, summarize
from fedexp.tracking.tracker import Record

_FILES = (FILE_NAME, METRICS, SUMMARY, PARTITION, DATA, ORIGIN, FEDERATION)
_COMPARED = ("metrics", "total", "peak", "rounds", "best_round", "seed", "config_hash")


@dataclass(frozen=True)
class Claim:
    """What a run's folder says.

    Attributes:
        run: the run, as reports read it.
        records: the metrics of each round.
        origins: the entries of ``origin.json``; empty for a run of an earlier version.
        partition: the text of ``partition.csv``; None if it is absent, or if the clients were on
            nodes of Flower, so that the server knew no class counts.
        on_nodes: whether the clients were on nodes of Flower.
        facts: the content of ``data.json``, see ``read_facts``.
        lost: the rounds that lost nodes have changed.
    """

    run: Run
    records: list[Record]
    origins: list[Origin]
    partition: str | None
    on_nodes: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    lost: Sequence[int] = ()


def read_claim(folder: Path) -> Claim:
    """Read a run's folder. Raises InputError, in one line, if a file is missing or damaged."""
    for name in _FILES:
        if not is_within(folder / name, folder):
            raise InputError(f"{folder}: {name} is a link out of the folder, not followed")
    run, path = read_run(folder), folder / METRICS
    with readable(path, *DAMAGED):
        records = parse_records(path.read_bytes())
        if not all(type(each.round) is int for each in records):
            raise ValueError("a round should be a whole number")
        values = (v for each in records for v in (*each.metrics.values(), *each.per_class.values()))
        if not all(isinstance(value, int | float) for value in values):
            raise ValueError("a metric should be a number")
    on_nodes, table = (folder / FEDERATION).is_file(), folder / PARTITION
    record = read_record(folder)
    if on_nodes and record.own_data:
        raise InputError(f"{run.place}: its clients' data are on nodes of their own")
    with readable(table, ValueError):
        has_table = table.is_file() and not on_nodes
        text = table.read_text(encoding="utf-8") if has_table else None
    facts = read_facts(folder)
    return Claim(run, records, read_origins(folder), text, on_nodes, facts, record.lost)


def read_facts(folder: Path) -> dict[str, Any]:
    """Dotted key of ``data.json`` in a run's folder -> value; empty if there is no such file.

    Raises InputError if the file is damaged.
    """
    with readable(folder / DATA, *DAMAGED):
        return flatten(with_moved(json.loads(read_small_file(folder / DATA) or b"{}")))


def contradictions(claim: Claim) -> Iterator[str]:
    """A line for each record that does not agree with the others; nothing is trained.

    Raises InputError if a record cannot be read.
    """
    rounds = [each.round for each in claim.records]
    if missing := sorted({*range(1, max(rounds, default=0) + 1)} - {*rounds}):
        yield f"{METRICS}: round {', '.join(map(str, missing))} is missing"
    if rounds != sorted({*rounds}):
        yield f"{METRICS}: its rounds are not in order"
    for start in claim.origins:
        yield from _wrong_texts(start)
    planned = claim.run.config["rounds"]
    if claim.origins and claim.origins[-1].get("rounds", planned) != planned:
        yield f"{ORIGIN}: the last start had another rounds than {FILE_NAME}"
    summary = claim.run.summary
    if summary is not None:
        with readable(claim.run.folder / SUMMARY, *DAMAGED):
            yield from _wrong_summary(claim, summary)
            yield from _wrong_digests(claim.run.folder, summary)


def _wrong_texts(start: Origin) -> Iterator[str]:
    code = start["code"]
    for name, text in code["own"].items():
        if code["files"].get(name) != hashlib.sha256(text.encode()).hexdigest():
            yield f"{ORIGIN}: the digest of {name} does not fit its text"


def _wrong_summary(claim: Claim, summary: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value of ``summary.json`` that does not follow from the other records."""
    run = claim.run
    saved = json.loads(read_small_file(run.folder / FILE_NAME))["config"]
    record = run.history, run.headlines, run.targets
    made = summarize(*record, saved, run.overrides, run.choices, {}, "", 0, "", 0.0)
    found = json.loads(as_bytes(made))  # as it is written: NaN is null
    # Earlier versions wrote 0 for bytes that were not counted.
    found["total"] = dict.fromkeys(summary.get("total", ()), 0) | found["total"]
    for key in _COMPARED:
        if key not in summary or key not in found:
            continue
        yield from (f"{SUMMARY}: {line}" for line in _unequal(key, summary[key], found[key]))


def _unequal(key: str, claimed: Any, found: Any) -> Iterator[str]:
    """Lines about the values that differ; statistics that an earlier version lacks are none."""
    if isinstance(claimed, Mapping) and isinstance(found, Mapping):
        for name in claimed:
            yield from _unequal(f"{key} {name}", claimed[name], found.get(name))
    elif claimed != found:
        yield f"{key} is {claimed}, but the other records give {found}"


def _wrong_digests(folder: Path, summary: Mapping[str, Any]) -> Iterator[str]:
    claimed = summary.get("records", {})
    found = file_digests(folder)
    for name in RECORDED:
        if name in claimed and found.get(name) != claimed[name]:
            what = "has changed since the run ended" if name in found else "is missing"
            yield f"{name}: {what} (its digest is not the one in {SUMMARY})"
    weights = saved_weights(folder, FINAL)
    # Fixed weights and class vectors are saved, but are not among the weights of the digest.
    outside = summary.get("outside_digest")  # absent in earlier versions
    if outside is not None and weights.is_file() and is_within(weights, folder):
        own = {n: each for n, each in load_tensors(weights).items() if n not in outside}
        if digest(own) != summary.get("weights_digest"):
            yield f"{SUMMARY}: weights_digest is not the digest of {weights.relative_to(folder)}"
