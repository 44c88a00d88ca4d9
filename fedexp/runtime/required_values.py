"""Values that some data need in the config."""

from collections.abc import Iterable

from fedexp.errors import InputError

Wanted = Iterable[tuple[str, object, object]]
"""(key, its value, the value it should have) of several keys."""


def check_required(wanted: Wanted, why: str) -> None:
    """Raise InputError for the first key that has not the value it should have.

    Args:
        wanted: the keys.
        why: completes "should be ..., since".
    """
    for key, value, required in wanted:
        if value != required:
            raise InputError(f"{key}={_shown(value)}: should be {_shown(required)}, since {why}")


def _shown(value: object) -> object:
    """As it is typed."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value
