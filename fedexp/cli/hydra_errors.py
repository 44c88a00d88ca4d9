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
    """A suggestion, if Hydra's message names an unknown key."""
    _, _, rest = text.partition("Could not override '")
    found = get_close_matches(rest.partition("'")[0], list(_keys(folder)), n=1) if rest else []
    return f" Did you mean {found[0]}?" if found else ""


def _keys(folder: Path) -> Iterator[str]:
    """Every key of every option, as on the command line."""
    for path in folder.glob("**/*.yaml"):
        group = path.parent.relative_to(folder).parts
        if group[:1] in (("algorithm",), ("experiment",)):  # their keys belong to other groups
            yield group[0]
        elif group[:1] != ("hydra",):
            yield from _flatten(OmegaConf.to_container(OmegaConf.load(path)), group)


def _flatten(node: Any, above: Sequence[str]) -> Iterator[str]:
    if above:
        yield ".".join(above)
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _flatten(value, (*above, str(key)))
