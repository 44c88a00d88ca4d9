"""Dictionaries of tensors: the floats in one; and several groups in one, each with a prefix."""

from fedexp.core.messages import Tensors


def floats(tensors: Tensors) -> Tensors:
    """Select the tensors that are not integers, such as weights without counters of batches."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """Rename each tensor from ``name`` to ``prefix/name``."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """Select the tensors named ``prefix/name`` and rename each to ``name``."""
    start = f"{prefix}/"
    return {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}
