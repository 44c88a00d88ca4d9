"""The values of a sweep, as texts for the overrides of its jobs."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString, Transformer
from hydra.errors import HydraException

from fedexp.cli.quoting import parsed


def swept_values(override: Override) -> list[str]:
    """The values of an override, each as a text that a job's override has after the ``=``.

    An override without a sweep has one value. ``shuffle`` gives the same order at each start, so
    that a sweep can be resumed.

    Args:
        override: parsed with a config loader, which ``glob`` needs.

    Raises:
        HydraException: the values cannot be listed, or there are none.
    """
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    typed = override.input_line
    if not override.is_discrete_sweep():
        raise HydraException(
            f"{typed}: only lists of values can be swept; to search an interval, add "
            "hydra/sweeper=optuna"
        )
    try:
        with _same_order():
            values = list(override.sweep_iterator())
    except ValueError as error:  # for example, a range whose step is 0
        raise HydraException(f"{typed}: {error}") from error
    if not values:
        is_glob = isinstance(override._value, Glob)
        why = "no option fits (of options in folders, name each)" if is_glob else "has no values"
        raise HydraException(f"{typed}: {why}")
    return [_text(each) for each in values]


@contextmanager
def _same_order() -> Iterator[None]:
    """Fix Python's random numbers, with which Hydra shuffles."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def _text(value: Any) -> str:
    """The text that Hydra reads as this value; Hydra's own text turns the string 7 into a number.

    ``value`` is an element of Hydra's ``sweep_iterator``.
    """
    text: str = Transformer.str(value)
    read = parsed(f"key={text}")
    if not isinstance(value, str) or (read is not None and read.value() == value):
        return text
    return QuotedString(value, Quote.single).with_quotes()
