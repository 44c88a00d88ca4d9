"""Whether the overrides of a run, by which reports name it, give the config that was trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedexp.config.keys import differences, is_below, override_key
from fedexp.errors import InputError
from fedexp.state.run_folder import FILE_NAME, SUMMARY
from fedexp.tracking.origin import Origin
from fedexp.verification.claims import Claim
from fedexp.verification.neutral import neutral
from fedexp.verification.places import DATA

Compose = Callable[[Sequence[str]], tuple[Mapping[str, Any], Mapping[str, str | None]]]
"""Overrides -> the checked config, and config group -> option. Raises InputError."""

_NOT_COMPOSED = ("${", "_target_")
"""Words of overrides that would read variables, or import modules, on this machine."""


def checked_names(
    claim: Claim, now: Origin, compose: Compose | None
) -> tuple[list[str], list[str]]:
    """Compare the overrides and the chosen options of a run with its config.

    Args:
        claim: the run.
        now: the origin of its repetition.
        compose: composes overrides here; None to compare nothing.

    Returns:
        Lines about contradictions, and lines about differences that may have another reason: the
        options of another version of fedexp, or options of somebody's own.
    """
    if compose is None or claim.on_nodes:
        return [], []
    try:
        found = list(_differences(claim, compose))
    except InputError as error:
        return [], [f"names: not checked ({error})"]
    about = now["fedexp"]
    is_certain = claim.origins and claim.origins[-1]["fedexp"] == about and not about.get("changed")
    return (found, []) if is_certain else ([], found)


def _differences(claim: Claim, compose: Compose) -> Iterator[str]:
    overrides = [each for each in claim.run.overrides if not _is_for_hydra(each)]
    if strange := [each for each in overrides if any(word in each for word in _NOT_COMPOSED)]:
        raise InputError(f"{strange[0]} is not composed")
    config, choices = compose(overrides)
    both = neutral(config), neutral(claim.run.config)
    keys = [each for each in differences(*both) if not is_below(override_key(each), DATA)]
    if keys:
        yield f"{SUMMARY}: its overrides give {_first(keys)}, unlike {FILE_NAME}"
    claimed = claim.run.choices
    options = [f"{k}={v}" for k, v in choices.items() if k in claimed and claimed[k] != v]
    if options:
        yield f"{SUMMARY}: its overrides give {_first(options)}, unlike its choices"


def _first(found: Sequence[str]) -> str:
    return found[0] + (f" (and {len(found) - 1} more)" if found[1:] else "")


def _is_for_hydra(override: str) -> bool:
    key = override_key(override)
    return key == "resume" or key.startswith("hydra")
