"""Sweeps: the time limit, and a check of keys in each job instead of once.

Hydra first composes one config for the whole sweep, without the swept values. With
``algorithm=fednh,fednh_paper head.rho=0.9`` this config does not have FedNH's head yet, and Hydra
would reject ``head.rho`` as unknown. So the override is rewritten as a sweep over one value,
``head.rho=choice(0.9)``. Hydra then checks the key in each job instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import shorten

import yaml
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli.ablate import WORD, check_word
from fedexp.cli.quoting import parsed
from fedexp.state.atomic import write_atomically

_SWEEPER = "hydra/sweeper"
_LONGEST = 100
"""Characters of a sweep's name before its folder's name, so that W&B can list it in one line."""


def check_in_jobs(arguments: Sequence[str], folder: Path) -> list[str]:
    """Rewrite each override of a key in a config group as a sweep over one value.

    So is ``ablate=head``, which is no key of the config. Sweepers other than fedexp's own get the
    arguments unchanged.

    Args:
        arguments: the arguments on the command line.
        folder: the config tree, whose folders are the groups.
    """
    words = [parsed(each) for each in arguments]
    keys = {each.key_or_group for each in words if each is not None}
    check_word(arguments, is_multirun(arguments))
    if not is_multirun(arguments) or _SWEEPER in keys:
        return list(arguments)
    return [
        _as_sweep(typed, override) if override and _is_in_group(override, folder) else typed
        for typed, override in zip(arguments, words, strict=True)
    ]


def minutes(config: DictConfig) -> float | None:
    """The time limit of a sweep, ``limits.minutes``; None if the sweep has no limit.

    The result is also None if the value is not a positive number: each job reports the error.
    """
    found = OmegaConf.select(config, "limits.minutes")
    return float(found) if isinstance(found, int | float) and found > 0 else None


def is_multirun(arguments: Sequence[str]) -> bool:
    """Whether ``-m`` or ``--multirun`` is among the arguments, abbreviated or not."""
    return any(map(_is_flag, arguments))


def save_sweep(config: DictConfig, folder: Path) -> None:
    """Write ``multirun.yaml``, from which the sweep is resumed; raises OSError."""
    content = OmegaConf.to_yaml(config).encode()
    write_atomically(folder / "multirun.yaml", content)  # a full disk must not damage the old file


@lru_cache(maxsize=1)  # the jobs of a sweep ask one after another, and the file is long
def sweep_name(folder: Path) -> str:
    """The name of a sweep: the swept keys or the name of the table, then the folder's name.

    For example ``algorithm partition.beta 12-30-00-a1b2``. Anything that cannot be read is left out
    of the name, because a name must not stop a run.
    """
    try:
        saved = OmegaConf.load(folder / "multirun.yaml").hydra
        words = [parsed(each) for each in saved.overrides.task]
        keys = [each.key_or_group for each in words if each and sweeps_several(each)]
        choices = saved.runtime.choices
        whole = [choices.get("experiment"), choices.get("search")] if saved.sweeper.params else []
    except (OSError, ValueError, AttributeError, TypeError, OmegaConfBaseException, yaml.YAMLError):
        return folder.name
    named = [key for key in keys if key != "seed" or len(keys) == 1]
    name = " ".join([*(str(each) for each in whole if each), *named])
    return f"{shorten(name, _LONGEST, placeholder=' ...')} {folder.name}".strip()


def sweeps_several(override: Override) -> bool:
    """Whether the override has several values; sweeps from ``check_in_jobs`` have one value."""
    if not override.is_sweep_override():
        return False
    try:
        return len(list(override.sweep_iterator())) > 1
    except (HydraException, ValueError):  # for example, glob without the config tree, or interval
        return True


def _is_flag(argument: str) -> bool:
    return argument == "-m" or (argument.startswith("--m") and "--multirun".startswith(argument))


def _is_in_group(override: Override, folder: Path) -> bool:
    """Whether it changes a value in a config group, such as ``head.rho=0.9``, or is ``ablate``."""
    group, _, key = override.key_or_group.partition(".")
    is_value = override.type == OverrideType.CHANGE and not override.is_sweep_override()
    if override.key_or_group == WORD:
        return is_value
    if not is_value or not key or group == "hydra":
        return False
    return (folder / group).is_dir() or group in _renamed_groups(folder)


def _renamed_groups(folder: Path) -> list[str]:
    """Keys of the config that have a group with another name: ``download``, of ``compression``."""
    defaults = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = [group for entry in defaults if isinstance(entry, dict) for group in entry]
    return [group.partition("@")[2] for group in groups if "@" in group]


def _as_sweep(typed: str, override: Override) -> str:
    """The sweep over the typed value; ``typed`` itself if Hydra would give jobs another value."""
    key = override.key_or_group
    swept = f"{key}=choice({typed.partition('=')[2]})"
    whole = parsed(swept)
    of_jobs = [parsed(f"{key}={each}") for each in whole.sweep_string_iterator()] if whole else []
    same = any(each is not None and each.value() == override.value() for each in of_jobs)
    return swept if same else typed  # Hydra drops the quotes of '3', which makes it a number
