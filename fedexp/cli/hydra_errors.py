"""Turns Hydra's errors about a command line into one line."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.errors import HydraException, InstantiationException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from fedexp.cli.arguments import config_dir_in
from fedexp.cli.elsewhere import known_elsewhere, plain
from fedexp.cli.option_circles import circle
from fedexp.cli.option_folders import searched_folders
from fedexp.cli.quoting import quoted, quoted_word
from fedexp.cli.suggestions import suggested_key
from fedexp.cli.sweeps import is_multirun
from fedexp.config.keys import override_key
from fedexp.config.option_files import shown
from fedexp.config.renamed_keys import renamed
from fedexp.errors import InputError

_MISTYPED = (  # the beginnings of Hydra's words that do not name the override
    "Config group override must be",  # a group is set to null or a number
    "Only one of --run, --multirun",
)
_EXTRAS = {
    "hydra/sweeper/optuna": "optuna",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
}
_SIMILAR = 0.7  # difflib's measure of two names, from 0 to 1, above which one may be meant
_FURTHER_ADVICE = ("\nConfig search path", "\nSee https", "\nTo append to your config")


@contextmanager
def one_line(overrides: Sequence[str], config_dir: str | Path | None = None) -> Iterator[None]:
    """Turn Hydra's errors about ``overrides`` into InputErrors of one line.

    Args:
        overrides: the overrides on the command line, and its flags if any.
        config_dir: the folder with the user's options, unless a flag names it.
    """
    try:
        yield
    except InstantiationException as error:
        if isinstance(error.__cause__, InputError):  # the sweeper refuses its keys
            raise error.__cause__ from None
        raise  # an error of the job, not of the command line
    except OverrideParseException as error:
        raise InputError(f"{error.override}: {_unreadable(error, overrides)}") from error
    except (HydraException, OmegaConfBaseException) as error:
        own = config_dir or config_dir_in(overrides)
        raise InputError(_one_line(error, overrides, own)) from error
    except yaml.MarkedYAMLError as error:
        raise InputError(_invalid(error)) from error
    except RecursionError as error:  # Hydra follows the files of a circle again and again
        if files := circle(searched_folders(config_dir or config_dir_in(overrides))):
            names = " -> ".join(map(shown, files))
            raise InputError(f"{names}: the defaults of these files form a circle") from error
        raise
    except ValueError as error:
        if not str(error).startswith(_MISTYPED):
            raise
        raise InputError(f"{' '.join(overrides)}: {error}") from error


def _invalid(error: yaml.MarkedYAMLError) -> str:
    """The error line about a file that is no valid YAML."""
    mark = error.problem_mark or error.context_mark
    place = f"{shown(Path(mark.name))}, line {mark.line + 1}: " if mark else ""
    advice = "; indent with spaces, not with tabs" if r"'\t'" in str(error.problem) else ""
    return f"{place}is not valid YAML ({error.problem}{advice})"


def _unreadable(error: OverrideParseException, overrides: Sequence[str]) -> str:
    """The error line about a word that Hydra's grammar refuses, without the word."""
    word = error.override
    if "=" not in word:
        return "should be GROUP=OPTION or KEY=VALUE; a value with spaces is quoted for the shell"
    said = str(error)
    if "while evaluating" in said and "Unknown function" not in said:
        reason = said.removeprefix(f"Error parsing override '{word}'")
        return " ".join(reason.partition("\nSee https")[0].split())
    if readable := quoted_word(word, is_multirun(overrides)):
        return f"cannot be read; write {readable}"
    return "cannot be read; a key has only letters from a to z, digits and . _ - / @"


def _one_line(error: Exception, overrides: Sequence[str], config_dir: str | Path | None) -> str:
    """The error line about an unknown key or option, or a value that does not fit."""
    text = f"{error}\n{error.__cause__ or ''}"
    for advice in _FURTHER_ADVICE:
        text = text.partition(advice)[0]
    if word := _quoted(text, "Ambiguous value for argument '"):
        key, _, value = word.partition("=")
        forms = [shlex.quote(f"{key}={form}") for form in (f"[{value}]", quoted(value))]
        return f"{word}: several values need -m; one list is {forms[0]}, one text is {forms[1]}"
    if said := _missing_option(text, overrides, searched_folders(config_dir)):
        return said
    return " ".join(text.split()) + _suggestion(text, overrides, config_dir)


def _suggestion(text: str, overrides: Sequence[str], config_dir: str | Path | None) -> str:
    """Advice that follows Hydra's message ``text``; empty if there is none.

    There is advice about an unknown key and a plugin that is not installed.
    """
    if unknown := _quoted(text, "Could not override '"):
        words = renamed(unknown)
        return f" It {words}" if words else suggested_key(unknown, overrides, config_dir)
    if (missing := _quoted(text, "Could not find '")) in _EXTRAS:
        return f"; it comes with pip install 'fedexp[{_EXTRAS[missing]}]'."
    return ""


def _missing_option(text: str, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """The error line about an unknown option of a group; empty for any other error."""
    group, _, option = _quoted(text, "Could not find '").partition("/")
    places = [folder / group for folder in folders if (folder / group).is_dir()]
    if not places or not option or group == "hydra":
        return ""
    found = _quoted(text, "In '")
    place = "" if found == "config" else f"in {found}: "
    typed = _as_typed(group, option, overrides)
    if words := renamed(f"{group}={option}"):
        return f"{place}{typed}={option} {words}"
    files = ((each, path) for each in places for path in each.glob("**/*.yaml"))
    own = {path.relative_to(each).with_suffix("").as_posix() for each, path in files}
    options = sorted({*own, *text.partition(f"Available options in '{group}':")[2].split()})
    if group == "algorithm" and (known := known_elsewhere(option)):
        advice = known
    elif similar := _similar(option, options):
        advice = f"did you mean {' or '.join(f'{typed}={each}' for each in similar)}?"
    else:
        advice = (
            f"there are: {', '.join(options)}; one of yours is the file DIR/{group}/{option}.yaml "
            "with --config-dir DIR"
        )
    return f"{place}{typed}={option}: no such option; {advice}"


def _as_typed(group: str, option: str, overrides: Sequence[str]) -> str:
    """The group with its place in the config if that is typed, as in ``compression@download``."""
    words = ((override_key(each), each.partition("=")[2].split(",")) for each in overrides)
    keys = (key for key, values in words if option in values)
    return next((key for key in keys if key.partition("@")[0] == group), group)


def _similar(option: str, options: Sequence[str]) -> list[str]:
    """The options with names like ``option``, the most similar first, at most three.

    The ``fed`` at the beginning of most methods' names does not make them similar.
    """
    names = {each: plain(each).removeprefix("fed") for each in options}
    wanted = plain(option).removeprefix("fed")
    close = get_close_matches(wanted, dict.fromkeys(names.values()), cutoff=_SIMILAR)
    return [next(each for each in options if names[each] == name) for name in close]


def _quoted(text: str, before: str) -> str:
    """The text between ``before`` and the next quotation mark; empty if there is none."""
    return text.partition(before)[2].partition("'")[0]
