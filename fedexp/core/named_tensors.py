"""Names of tensors: by a prefix, one dictionary holds several groups of tensors."""

from fedexp.core.messages import Tensors


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """Rename each tensor from ``name`` to ``prefix/name``."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """Select the tensors named ``prefix/name`` and rename each to ``name``."""
    start = f"{prefix}/"
    return {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}
