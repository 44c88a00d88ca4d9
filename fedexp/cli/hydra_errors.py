"""Hydra's errors about a command line, in one line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, InstantiationException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.errors import InputError

_NO_OPTION = "Config group override must be"  # a group is null, or a number
_EXTRAS = {
    "hydra/sweeper/optuna": "optuna",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}
_FURTHER_ADVICE = ("\nConfig search path", "\nSee https", "\nTo append to your config")


@contextmanager
def one_line(overrides: Sequence[str], folder: Path) -> Iterator[None]:
    """Raise Hydra's errors about ``overrides`` as InputError, in one line in Hydra's words.

    Args:
        overrides: as on the command line.
        folder: the config tree, for suggesting a key in place of a mistyped one.
    """
    try:
        yield
    except InstantiationException:  # raised by the job, not about the command line
        raise
    except (HydraException, OmegaConfBaseException) as error:
        at = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
        text = f"{error}\n{error.__cause__ or ''}"
        for advice in _FURTHER_ADVICE:
            text = text.partition(advice)[0]
        raise InputError(at + " ".join(text.split()) + _suggestion(text, folder)) from error
    except ValueError as error:
        if _NO_OPTION not in str(error):
            raise
        # Hydra does not name the override.
        raise InputError(f"{' '.join(overrides)}: {error}") from error


def _suggestion(text: str, folder: Path) -> str:
    """A suggestion, if Hydra's message names an unknown key or option."""
    if "missing EQUAL" in text:
        return " Write GROUP=OPTION or KEY=VALUE."
    if unknown := _quoted(text, "Could not override '"):
        return _similar_key(unknown, folder)
    missing = _quoted(text, "Could not find '")
    if missing in _EXTRAS:
        return f" It comes with pip install 'fedexp[{_EXTRAS[missing]}]'."
    group, _, option = missing.partition("/")
    options = [
        path.relative_to(folder / group).with_suffix("").as_posix()
        for path in sorted((folder / group).glob("**/*.yaml"))
    ]
    found = get_close_matches(option, options) if group else []
    return f" Did you mean {' or '.join(f'{group}={each}' for each in found)}?" if found else ""


def _quoted(text: str, before: str) -> str:
    """What stands between ``before`` and the next quote; empty if it is not there."""
    return text.partition(before)[2].partition("'")[0]


def _similar_key(unknown: str, folder: Path) -> str:
    """The options that have this key, or else the key that is spelt most like it."""
    keys = list(_keys(folder))
    group = unknown.partition(".")[0]
    options = sorted({option for key, option in keys if (key, option[0]) == (unknown, group)})
    if options:
        names = ", ".join(f"{group}={name}" for _, name in options)
        return f" It is a key of {names}, not of the chosen option."
    found = get_close_matches(unknown, [key for key, _ in keys], n=1)
    return f" Did you mean {found[0]}?" if found else ""


def _keys(folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every key as on the command line, with (group, option) of the file that has it."""
    for path in folder.glob("**/*.yaml"):
        group = path.parent.relative_to(folder).parts
        if group[:1] == ("hydra",):
            continue
        node = OmegaConf.to_container(OmegaConf.load(path))
        is_global = path.read_text(encoding="utf-8").startswith("# @package _global_")
        option = (group[0] if group else "", path.stem)
        yield from ((key, option) for key in group[:1])
        yield from ((key, option) for key in _flatten(node, () if is_global else group))


def _flatten(node: Any, above: Sequence[str]) -> Iterator[str]:
    if above:
        yield ".".join(above)
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key != "defaults":
                yield from _flatten(value, (*above, str(key)))
