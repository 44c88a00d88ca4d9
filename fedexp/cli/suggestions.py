"""Suggests an existing key for a key on the command line that does not exist."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli import hydra_api
from fedexp.cli.option_folders import search_path, searched_folders
from fedexp.config.composed import preset_keys
from fedexp.config.keys import is_below, override_key

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


def suggested_key(unknown: str, overrides: Sequence[str], config_dir: str | Path | None) -> str:
    """A sentence of advice about an unknown key; empty if no key is similar.

    The sentence follows Hydra's error message. A key of this name in another option of the group
    comes first, then similar keys of the group's chosen option and of its other options. Then come
    keys of the whole config whose last part is the unknown name, keys that other frameworks call by
    this name, and keys of similar spelling, of the chosen options only.

    Args:
        unknown: the key, for example "batch_size".
        overrides: the whole command line.
        config_dir: the folder with the user's options; None if there is no such folder.
    """
    folders = searched_folders(config_dir)
    groups = {path.name for folder in folders for path in folder.glob("*/")}
    if unknown in groups:  # here Hydra's own message gives the advice +group=
        return ""
    group, _, name = unknown.partition(".")
    if f"{group}._target_" in map(override_key, overrides):
        return f" An argument of your own class is added as +{unknown}=VALUE."
    others = _keys_of_group(group, folders) if group in groups else {}
    if name in others:
        return f" It is a key of {others[name]}, not of the chosen option."
    known = _keys_in_use(overrides, folders, search_path(config_dir))
    own = [key.removeprefix(f"{group}.") for key in known if key.startswith(f"{group}.")]
    if close := get_close_matches(name, own, n=1):
        return f" Did you mean {group}.{close[0]}?"
    if close := get_close_matches(name, list(others), n=1, cutoff=0.8):
        return f" Did you mean {group}.{close[0]}, a key of {others[close[0]]}?"
    found = _meant(unknown, known, sorted(groups))
    return f" Did you mean {found}?" if found else ""


def _keys_of_group(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Key of a group, without the group's name -> the options that have it: ``head=etf, ...``."""
    owners = defaultdict[str, set[str]](set)
    for folder in folders:
        for path in (folder / group).glob("**/*.yaml"):
            node = OmegaConf.to_container(OmegaConf.load(path))
            is_global = path.read_text(encoding="utf-8").startswith("# @package _global_")
            above = () if is_global else path.parent.relative_to(folder).parts
            option = path.relative_to(folder / group).with_suffix("").as_posix()
            for key in _flatten(node, above):
                if key.startswith(f"{group}."):
                    owners[key.removeprefix(f"{group}.")].add(f"{group}={option}")
    return {key: ", ".join(sorted(found)) for key, found in owners.items()}


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


def _keys_in_use(
    overrides: Sequence[str], folders: Sequence[Path], search: Sequence[str]
) -> list[str]:
    """The keys of the config that the overrides compose, in the config's order.

    Args:
        overrides: the whole command line.
        folders: the folders with options; the first is fedexp's config tree.
        search: the override that makes Hydra search the user's folder, if any.
    """
    for choices in (dict(_choices(overrides, folders)), {}):
        typed = [f"{group}={option}" for group, option in choices.items()]
        try:
            with hydra_api.initialize(str(folders[0])):
                composed = hydra.compose("config", [*search, *typed])
                config: Any = OmegaConf.to_container(composed)
        except (HydraException, OmegaConfBaseException, ValueError):
            continue
        lacking = {
            f"{group}.{key}"
            for group, option in choices.items()
            if isinstance(node := config.get(group), Mapping)
            for key in preset_keys(group, option, node, overrides, folders)
        }
        return [key for key in _flatten(config, ()) if not is_below(key, {"paper", *lacking})]
    return []


def _choices(overrides: Sequence[str], folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """(group, option) of each override that chooses an option; the first option of a sweep."""
    for typed in overrides:
        group, equals, option = typed.partition("=")
        places = [folder / group.lstrip("+") for folder in folders]
        is_group = equals and any(map(Path.is_dir, places)) and not group.startswith("-")
        if is_group and not option.startswith("["):
            yield group, option.partition(",")[0]


def _flatten(node: Any, above: Sequence[str]) -> Iterator[str]:
    if above:
        yield ".".join(above)
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key not in ("defaults", "_target_"):
                yield from _flatten(value, (*above, str(key)))
