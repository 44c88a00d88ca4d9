"""Trains the first rounds of a run again, from its config; nothing is written to the run."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedexp.config.compatibility.traits import HIDES_COHORTS
from fedexp.config.schema import Config, validate
from fedexp.config.sources import source_code
from fedexp.core.saved_state import predicting, saved_state
from fedexp.data.description_file import write_description
from fedexp.data.fingerprint import fingerprint
from fedexp.data.load import load_data
from fedexp.data.partition_table import write_partition
from fedexp.distributed.fabric import make_fabric
from fedexp.distributed.ranks import ranks_of
from fedexp.engines.threads import restored_threads, set_threads
from fedexp.errors import InputError
from fedexp.runtime.early import check
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.state.run_folder import FINAL, PARTITION
from fedexp.tracking.environment import OF_ENGINE, environment
from fedexp.tracking.follow import History
from fedexp.tracking.jsonl import parse_records
from fedexp.tracking.origin import Origin, origin
from fedexp.tracking.summary import digest
from fedexp.tracking.tracker import Record
from fedexp.verification.claims import read_facts
from fedexp.verification.places import moved

_ONE_PROCESS = {"devices": 1, "num_nodes": 1, "processes_per_device": 1, "balance": "samples"}


@dataclass(frozen=True)
class Again:
    """The first rounds of a run, trained again.

    Attributes:
        records: the rounds.
        lines: their lines of ``metrics.jsonl``.
        origin: the code, data and environment of this training.
        partition: the text of ``partition.csv``.
        facts: the content of ``data.json``, see ``claims.read_facts``.
        weights_digest: the digest of the final global weights; None if rounds are left.
        models: name of a saved model -> the digest of the tensors that its predictions need; empty
            if rounds are left.
    """

    records: list[Record]
    lines: bytes
    origin: Origin
    partition: str
    facts: Mapping[str, Any]
    weights_digest: str | None
    models: Mapping[str, str]


def config_here(
    config: Mapping[str, Any], started: Mapping[str, Any], cache: str, places: Mapping[str, str]
) -> Config:
    """The config of a run, for training in this process and without trackers.

    Args:
        config: the run's config.
        started: the run's environment. If its device was the CPU, this training is on the CPU, too;
            otherwise on a GPU, if there is one. If its ``threads`` are no number, or it lacks a key
            of the engine such as ``precision``, the config decides.
        cache: the folder for decoded data on this machine.
        places: key of a file or folder -> its place on this machine, see ``places.KEYS``.

    Raises:
        InputError: the config is wrong.
    """
    device, threads = "cpu" if started.get("device") == "cpu" else "auto", started.get("threads")
    engine = {**config["engine"], **_ONE_PROCESS, "device": device}
    if type(threads) is int and 0 < threads <= 1024:
        engine["threads"] = threads
    engine |= {key: started[key] for key in OF_ENGINE if key in started}
    jsonl = config["tracking"]["trackers"]["jsonl"]
    tracking = {**config["tracking"], "trackers": {"jsonl": jsonl}}
    data = {**config["data"], "cache": cache}
    here = {"engine": engine, "tracking": tracking, "data": data, "resume": None}
    return validate(moved({**config, **here}, places))


def train_again(config: Config, rounds: int, on_nodes: bool) -> Again:
    """Train the first ``rounds`` rounds of a run of ``config``.

    The config keeps its own number of rounds, because schedules and parts depend on it. With
    ``on_nodes`` the clients of the run were on nodes of Flower.

    Raises:
        InputError: the config cannot run on this machine, its data cannot be read, or its cohorts
            were drawn in secret.
    """
    planned, history = plan(config, check(config)), History()
    if on_nodes and HIDES_COHORTS in planned.sockets.aggregator.traits:
        raise InputError("aggregator: on Flower its noise and cohorts do not follow from the seed")
    fabric = make_fabric(config.engine)
    data = load_data(config, planned.source, fabric.device)
    with restored_threads(), TemporaryDirectory() as temporary:
        shape = planned.description.input_shape
        set_threads(config, planned.backbone, shape, fabric.device, ranks_of(fabric))
        folder = Path(temporary)
        federation = Federation(planned, fabric, data, history, folder / "clients")
        write_partition(folder / PARTITION, data)
        write_description(folder, data.description, data.preparation)
        table = (folder / PARTITION).read_text(encoding="utf-8")
        facts = read_facts(folder)
        code = source_code(config.model_dump(mode="json"))
        machine = environment(fabric.device, config.engine, code.libraries)
        here = origin(config.rounds, code, fingerprint(data), machine)
        with closing(federation.store):
            last = federation.run(config.rounds, 0, lambda round: round >= rounds)
        weights: str | None = None
        models: dict[str, str] = {}
        if last == config.rounds:
            weights = digest(federation.global_model(last).weights)
            chosen = {**federation.measures.chosen, FINAL: federation.server.broadcast(last)}
            models = {
                name: digest(predicting(saved_state(federation.load(each))))
                for name, each in chosen.items()
            }
        lines = b"".join(history.lines)
        return Again(parse_records(lines), lines, here, table, facts, weights, models)
