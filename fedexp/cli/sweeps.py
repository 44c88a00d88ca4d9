"""With ``-m``, the keys of config groups are checked in the jobs.

Hydra first composes one config for the whole sweep, without what is swept. In it
``algorithm=fedprox,scaffold`` does not count, nor do the methods of a table, so that a key of the
options that they choose is unknown. A value that is swept is no part of that config, even if it
is the only one: ``regularizer.mu=choice(0.1)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

_SWEEPER = "hydra/sweeper"


def check_in_jobs(arguments: Sequence[str], folder: Path) -> list[str]:
    """The arguments of a command line, each value of a group's key as the only one of a sweep.

    Other sweepers than fedexp's own get the arguments as they are.

    Args:
        arguments: as typed.
        folder: the config tree, whose folders are the groups.
    """
    parsed = [_parse(each) for each in arguments]
    keys = {each.key_or_group for each in parsed if each is not None}
    if not any(map(_is_multirun, arguments)) or _SWEEPER in keys:
        return list(arguments)
    return [
        _as_sweep(typed, override) if override and _is_in_group(override, folder) else typed
        for typed, override in zip(arguments, parsed, strict=True)
    ]


def _is_multirun(argument: str) -> bool:
    return argument == "-m" or (argument.startswith("--m") and "--multirun".startswith(argument))


def _is_in_group(override: Override, folder: Path) -> bool:
    """Whether it changes one value of a config group's option, as ``head.rho=0.9``."""
    group, _, key = override.key_or_group.partition(".")
    is_value = override.type == OverrideType.CHANGE and not override.is_sweep_override()
    return is_value and bool(key) and group != "hydra" and (folder / group).is_dir()


def _as_sweep(typed: str, override: Override) -> str:
    swept = f"{override.key_or_group}=choice({typed.partition('=')[2]})"
    return swept if _parse(swept) else typed


def _parse(argument: str) -> Override | None:
    """The argument as an override; None if it is none."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None
