"""Turns Hydra's errors about a command line into one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from hydra.errors import HydraException, InstantiationException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli.suggestions import suggested_key
from fedexp.config.renamed_keys import renamed
from fedexp.errors import InputError

_NO_OPTION = "Config group override must be"  # Hydra's words if a group is set to null or a number
_EXTRAS = {
    "hydra/sweeper/optuna": "optuna",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}
_FURTHER_ADVICE = ("\nConfig search path", "\nSee https", "\nTo append to your config")


@contextmanager
def one_line(overrides: Sequence[str], folder: Path) -> Iterator[None]:
    """Turn Hydra's errors about ``overrides`` into InputErrors of one line.

    Args:
        overrides: the overrides on the command line.
        folder: the config tree, for suggesting keys and options.
    """
    try:
        yield
    except InstantiationException:  # an error of the job, not of the command line
        raise
    except (HydraException, OmegaConfBaseException) as error:
        at = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
        text = f"{error}\n{error.__cause__ or ''}"
        for advice in _FURTHER_ADVICE:
            text = text.partition(advice)[0]
        said = _missing_option(text, folder) or " ".join(text.split()) + _suggestion(
            text, overrides, folder
        )
        raise InputError(at + said) from error
    except ValueError as error:
        if _NO_OPTION not in str(error):
            raise
        # Hydra does not name the override.
        raise InputError(f"{' '.join(overrides)}: {error}") from error


def _suggestion(text: str, overrides: Sequence[str], folder: Path) -> str:
    """Advice that follows Hydra's message ``text``; empty if there is none.

    There is advice about an unknown key, a missing ``=``, and a plugin that is not installed.
    """
    if "missing EQUAL" in text:
        return " Write GROUP=OPTION or KEY=VALUE."
    if unknown := _quoted(text, "Could not override '"):
        words = renamed(unknown)
        return f" It {words}" if words else suggested_key(unknown, overrides, folder)
    if (missing := _quoted(text, "Could not find '")) in _EXTRAS:
        return f"; it comes with pip install 'fedexp[{_EXTRAS[missing]}]'."
    return ""


def _missing_option(text: str, folder: Path) -> str:
    """The error line about an unknown option of a group; empty for any other error."""
    group, _, option = _quoted(text, "Could not find '").partition("/")
    if not (folder / group).is_dir() or not option or group == "hydra":
        return ""
    found = _quoted(text, "In '")
    place = "" if found == "config" else f"in {found}: "
    if words := renamed(f"{group}={option}"):
        return f"{place}{group}={option} {words}"
    own = text.partition(f"Available options in '{group}':")[2].split()
    files = (folder / group).glob("**/*.yaml")
    options = sorted(
        {*own, *(path.relative_to(folder / group).with_suffix("").as_posix() for path in files)}
    )
    if similar := get_close_matches(option, options):
        advice = f"did you mean {' or '.join(f'{group}={each}' for each in similar)}?"
    else:
        advice = (
            f"there are: {', '.join(options)}; one of yours is the file DIR/{group}/{option}.yaml "
            "with --config-dir DIR"
        )
    return f"{place}{group}={option}: no such option; {advice}"


def _quoted(text: str, before: str) -> str:
    """The text between ``before`` and the next quotation mark; empty if there is none."""
    return text.partition(before)[2].partition("'")[0]
