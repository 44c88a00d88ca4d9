"""Suggests an existing key for a key on the command line that does not exist."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli import hydra_api

_SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "local_lr": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "optim": "optimizer",
    "bs": "local.batch_size",
    "local_bs": "local.batch_size",
    "num_epochs": "local.epochs",
    "local_epochs": "local.epochs",
    "local_ep": "local.epochs",
    "local_iterations": "local.steps",
    "local_steps": "local.steps",
    "max_grad_norm": "local.grad_clip",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "global_epochs": "rounds",
    "comm_rounds": "rounds",
    "communication_rounds": "rounds",
    "num_clients": "clients.count",
    "n_clients": "clients.count",
    "client_num": "clients.count",
    "population": "clients.count",
    "cohort": "clients.per_round",
    "cohort_size": "clients.per_round",
    "clients_per_round": "clients.per_round",
    "join_ratio": "clients.per_round",
    "frac": "clients.per_round",
    "fraction": "clients.per_round",
    "participation": "clients.per_round",
    "dirichlet_alpha": "partition.beta",
    "alpha": "partition.beta",
    "dataset": "data",
    "method": "algorithm",
    "strategy": "algorithm",
    "aggregation": "aggregator",
    "random_seed": "seed",
    "gpu": "engine.device",
    "gpus": "engine.devices",
    "precision": "engine.precision",
    "val_fraction": "data.validation",
}
"""A name in other frameworks or papers -> the key or config group of fedexp."""


def suggested_key(unknown: str, overrides: Sequence[str], folder: Path) -> str:
    """A sentence of advice about an unknown key; empty if no key is similar.

    The sentence follows Hydra's error message. Keys of the config whose last part is the unknown
    name come first, then keys that other frameworks call by this name, then keys of similar
    spelling. A key that the chosen options do not have is never suggested.

    Args:
        unknown: the key, for example "batch_size".
        overrides: the whole command line.
        folder: the config tree.
    """
    if (folder / unknown).is_dir():  # a group; here Hydra's own message gives the advice +group=
        return ""
    group = unknown.partition(".")[0]
    owners = sorted({o for k, (g, o) in keys_of_files(folder) if (k, g) == (unknown, group)})
    if owners:
        names = ", ".join(f"{group}={name}" for name in owners)
        return f" It is a key of {names}, not of the chosen option."
    known = _keys_in_use(overrides, folder)
    groups = [each.name for each in sorted(folder.iterdir()) if each.is_dir()]
    found = _meant(unknown, known, groups)
    return f" Did you mean {found}?" if found else ""


def _meant(unknown: str, known: Sequence[str], groups: Sequence[str]) -> str | None:
    """The key or group that the user probably meant; None if nothing is similar to ``unknown``."""
    name = unknown.rpartition(".")[2]
    by_depth = sorted(known, key=lambda key: key.count("."))  # a stable sort
    same = [key for key in by_depth if "." in key and key.rpartition(".")[2] == name]
    if same and same[0].count(".") == 1:
        return same[0]
    if synonym := _SYNONYMS.get(name):
        return synonym if synonym in {*known, *groups} else None
    if same:
        return same[0]
    similar = get_close_matches(unknown, [*known, *groups], n=1)
    if similar and ("." in similar[0] or "." not in unknown):  # not a group for a dotted key
        return similar[0]
    last = {key.rpartition(".")[2]: key for key in reversed(by_depth)}
    close = get_close_matches(name, list(last), n=1, cutoff=0.8)
    return last[close[0]] if close else None


def _keys_in_use(overrides: Sequence[str], folder: Path) -> list[str]:
    """The keys of the config that the overrides compose, in the config's order."""
    choices = dict(_choices(overrides, folder))
    typed = [f"{group}={option}" for group, option in choices.items()]
    for attempt in (typed, []):
        try:
            with hydra_api.initialize(str(folder)):
                config = OmegaConf.to_container(hydra.compose("config", attempt))
        except (HydraException, OmegaConfBaseException, ValueError):
            continue
        lacking = _strays(choices, config, folder) if attempt else set()
        return [key for key in _flatten(config, ()) if key not in lacking and key != "paper"]
    return []


def _choices(overrides: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """(group, option) of each override that chooses an option; the first option of a sweep."""
    for typed in overrides:
        group, equals, option = typed.partition("=")
        is_group = equals and (folder / group.lstrip("+")).is_dir() and not group.startswith("-")
        if is_group and not option.startswith("["):
            yield group, option.partition(",")[0]


def _strays(choices: Mapping[str, str], config: Any, folder: Path) -> set[str]:
    """Keys of a group that a preset sets, but that the group's chosen option does not have."""
    common: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    strays: set[str] = set()
    for group, option in choices.items():
        path = folder / group / f"{option}.yaml"
        if not path.is_file() or not isinstance(config.get(group), Mapping):
            continue
        own: Any = OmegaConf.to_container(OmegaConf.load(path))
        if "defaults" in own:  # the option also takes keys of another option
            continue
        known = {*_flatten(own, (group,)), *_flatten(common.get(group, {}), (group,))}
        strays |= {key for key in _flatten(config[group], (group,)) if key not in known}
    return strays


def keys_of_files(folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each key as typed on the command line, and the (group, option) of the key's file."""
    for path in folder.glob("**/*.yaml"):
        group = path.parent.relative_to(folder).parts
        if group[:1] == ("hydra",):
            continue
        node = OmegaConf.to_container(OmegaConf.load(path))
        is_global = path.read_text(encoding="utf-8").startswith("# @package _global_")
        option = (group[0] if group else "", path.stem)
        yield from ((key, option) for key in _flatten(node, () if is_global else group))


def _flatten(node: Any, above: Sequence[str]) -> Iterator[str]:
    if above:
        yield ".".join(above)
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key not in ("defaults", "_target_"):
                yield from _flatten(value, (*above, str(key)))
