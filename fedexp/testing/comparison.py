"""Compares the results of two runs, for the checks of parts and measures."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedexp.errors import InputError


class ContractError(AssertionError):
    """A part or a measure breaks a rule of its contract."""


def compare(
    expected: Mapping[str, Any],
    run: Callable[[], Mapping[str, Any]],
    rule: str,
    tolerance: float = 0.0,
) -> None:
    """Raise ContractError if ``run`` fails or does not return the expected values.

    Args:
        expected: name -> value.
        run: returns name -> value; its InputError or ContractError is passed on.
        rule: the rule that is then broken; the text of the error begins with it.
        tolerance: largest allowed difference, absolute for tensors and relative for numbers.
    """
    try:
        found = run()
    except (InputError, ContractError):
        raise
    except Exception as error:
        raise ContractError(f"{rule} ({type(error).__name__}: {error})") from error
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            raise ContractError(f"{rule} ({name} is absent once)")
        if difference := _difference(expected[name], found[name], tolerance):
            raise ContractError(f"{rule} ({name} {difference})")


def _difference(one: Any, other: Any, tolerance: float) -> str | None:
    """How two values differ, in words; None if they differ by at most the tolerance.

    The tolerance is absolute for tensors and relative for numbers.
    """
    if not isinstance(one, Tensor):
        return None if _alike(one, other, tolerance) else f"is {one} and {other}"
    if not isinstance(other, Tensor):
        return f"is a tensor once, and {other} once"
    if one.shape != other.shape:
        return f"has the shapes {tuple(one.shape)} and {tuple(other.shape)}"
    if torch.equal(one, other):
        return None
    same = (one == other) | (one.isnan() & other.isnan())  # NaN equals NaN
    gap = (one.double() - other.double()).abs().where(~same, 0.0).max().item()
    return None if gap <= tolerance else f"differs by {gap:.2g}"


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values or lists of values are equal up to the tolerance; NaN equals NaN."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_alike(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=tolerance)
    return bool(one == other)
