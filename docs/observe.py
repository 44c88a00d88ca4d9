"""Run a few small rounds of every method and store what it sends, keeps and is refused with.

``bash scripts/docs.sh --observe`` writes ``docs/observed.json``. Only names of tensors and
what a run says are stored, so clients are few and local training is short.
"""

import argparse
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from multiprocessing import get_context
from typing import Any

from generate.declared import SOCKETS
from generate.observed import FILE, REFUSERS
from generate.options import find, options
from generate.run_plan import faster, overrides
from measure import as_text
from torch import Tensor

from fedexp.cli.compose import composed
from fedexp.config.keys import override_key
from fedexp.config.schema import Config, validate
from fedexp.core.messages import Update
from fedexp.data.load import load_data
from fedexp.deployment.flower.check import check_on_nodes, without_simulated_measures
from fedexp.distributed.fabric import cpu_fabric
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

ROUNDS = 12
"""More rounds than any method waits before it begins."""
TRIED = 2
"""The second round uses what the first one has made."""
_SMALL = (
    *("clients.count=8", "clients.per_round=4", "data.subset=400", "local.epochs=1"),
    *(f"rounds={ROUNDS}", "measure.personal=null", "objective=train/loss"),
    *("tracking.wandb.mode=disabled", "on_bad_update=raise"),
)

_MODEL = ("backbone.", "head.")

_Found = dict[str, set[str]]
"""Socket -> names of tensors."""


def main() -> None:
    """Observe the named methods, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="only these presets")
    there = [each.name for each in options("algorithm")]
    names = parser.parse_args().methods or there
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    failed = 0
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _quiet) as pool:
        futures = {pool.submit(observe, name): name for name in names}
        for future in as_completed(futures):
            if error := future.exception():
                failed += 1
                print(f"{futures[future]}: failed: {error!r}", flush=True)
            else:
                known[futures[future]] = future.result()
                FILE.write_text(as_text({name: known[name] for name in there if name in known}))
    if failed:
        raise SystemExit(f"{failed} methods failed")


def _quiet() -> None:
    logging.disable(logging.WARNING)


def observe(name: str) -> dict[str, Any]:
    """The fields of ``generate.observed.Observed``."""
    words = _overrides(name)
    federation = _Watched(_config([*words, "engine=serial"]))
    federation.run_rounds(ROUNDS)
    return {
        "weights": federation.shared(),
        "down": _in_words(federation.down),
        "up": _in_words(federation.up),
        "client": _in_words(federation.kept),
        "server": _in_words(federation.kept_by_server()),
        "refused": {each: _refusal(words, typed) for each, typed in REFUSERS.items()},
    }


def _overrides(name: str) -> list[str]:
    """Its command line with few clients; how the data are divided does not matter here."""
    left_out = ("partition.", "measure.", "rounds=")
    option = find("algorithm", name)
    own = [each for each in overrides(option) if not each.startswith(left_out)]
    return [*_SMALL, *own, *faster(option)]


def _config(words: list[str]) -> Config:
    return validate(composed(words).config)


def _refusal(words: list[str], typed: str) -> str:
    """What a run says if it refuses the override; without one, what the export to Flower says."""
    try:
        if not typed:
            config, _ = without_simulated_measures(_config([*words, "engine=serial"]))
            check_on_nodes(plan(config), own_data=False)
            return ""
        group = typed.partition("=")[0]
        others = [each for each in words if not override_key(each).startswith(f"{group}.")]
        engine = [] if group == "engine" else ["engine=serial"]
        _Watched(_config([*others, *engine, typed])).run_rounds(TRIED)
    except InputError as error:
        return str(error)
    return ""


class _Watched(Federation):
    """A federation on the CPU that remembers which tensors travel and are kept."""

    def __init__(self, config: Config) -> None:
        planned, fabric = plan(config), cpu_fabric()
        super().__init__(planned, fabric, load_data(config, planned.source, fabric.device))
        self.down: _Found = {}
        self.up: _Found = {}
        self.kept: _Found = {}

    def run_rounds(self, rounds: int) -> None:
        """Train; afterwards the clients' states are known and their files are closed."""
        with closing(self.store):
            for round in range(1, rounds + 1):
                message = self.server.broadcast(round)
                for client in range(len(self.data.clients)):
                    self._remember(self.down, message.to_client(client).extras)
                self.run_round(round)
            for _, state in self.store.states():
                self._remember(self.kept, state.memories)
                own = {"private weights": state.private, "own model": state.separate_model}
                for kind, weights in own.items():
                    if weights:
                        self.kept[kind] = {name.partition(".")[0] for name in weights}

    def accepted(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates, after a look at them."""
        for update in super().accepted(updates):
            self._remember(self.up, update.extras)
            yield update

    def shared(self) -> list[str]:
        """The parts of the model that travel; ``weights`` if backbone and head travel whole."""
        sent, there = self.server.weights, filter(self.module.is_sent, self.module.weights)
        private = {name for name in there if name not in sent}
        places = sorted({name.partition(".")[0] for name in sent})
        if sent and not any(name.startswith(_MODEL) for name in private):
            return ["weights", *(each for each in places if f"{each}." not in _MODEL)]
        return [
            f"part of the {place}" if any(n.startswith(f"{place}.") for n in private) else place
            for place in places
        ]

    def kept_by_server(self) -> _Found:
        """The tensors and numbers of the parts, without those that every method's part keeps."""
        found: _Found = {}
        for socket, stores in self.server.fixed_state().items():
            for tensors in stores.values():
                self._remember(found, {socket: tensors})
        for socket, state in self.server.state_dict()["parts"].items():
            held = {name for name, value in state.items() if _holds(value)}
            if own := held - set(SOCKETS[socket].saved):
                found.setdefault(socket, set()).update(name.strip("_") for name in own)
        return found

    def _remember(self, found: _Found, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        for socket, named in tensors.items():
            if named:
                words = (_word(name, self.module.weights) for name in named)
                found.setdefault(socket, set()).update(words)


def _word(name: str, weights: Mapping[str, Tensor]) -> str:
    """A tensor's name without the name of the weight that it belongs to."""
    kind, _, rest = name.partition("/")
    if name in weights or re.match(r"\d+\b", name) or name.startswith(_MODEL):
        return "weights"
    return re.sub(r"_\d+$", "", kind if rest else name)  # one for each class or client


def _holds(value: Any) -> bool:
    """Whether there is a tensor or a number other than 0 in it."""
    if isinstance(value, Mapping):
        return any(map(_holds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds, value))
    return isinstance(value, Tensor) or bool(value)


def _in_words(found: _Found) -> dict[str, list[str]]:
    return {socket: sorted(names) for socket, names in sorted(found.items())}


if __name__ == "__main__":
    main()
