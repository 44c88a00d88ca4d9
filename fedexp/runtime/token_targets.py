"""What cannot be combined with data whose tokens each have a target."""

import inspect
from collections.abc import Callable, Mapping
from typing import Protocol

from fedexp.config.schema import Config
from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.runtime.required_values import Wanted, check_required

_PLAIN = {
    "head": "linear",
    "loss": "cross_entropy",
    "regularizer": "none",
    "personalization": "none",
    "sampler": "random",
    "faults": "none",
}
"""Config group -> its plainest option, which takes tokens."""


class TakesTokens(Protocol):
    """A part, or faults."""

    @property
    def takes_tokens(self) -> bool:
        """Whether it works where each token of a sequence has a target."""


def check_tokens(
    config: Config,
    about: Description,
    partition: Callable[..., object],
    parts: Mapping[str, TakesTokens],
) -> None:
    """Raise InputError for what needs one class a sample.

    Args:
        config: of the run.
        about: the dataset, each token of which has a target.
        partition: the function of the partition; it needs classes if it takes ``labels``.
        parts: config group -> part, and the faults.
    """
    why = f"needs one class a sample, but in {about.name} each token has a target"
    for group, part in parts.items():
        if not part.takes_tokens:
            plain = f"; {group}={_PLAIN[group]} does not" if group in _PLAIN else ""
            raise InputError(f"{group}: {type(part).__name__} {why}{plain}")
    if "labels" in inspect.signature(partition).parameters:
        name = getattr(partition, "__name__", "this one")
        raise InputError(f"partition: {name} {why}; take natural or iid")
    settings, pictures = config.evaluation, config.tracking
    wanted: Wanted = (
        ("evaluation.personal", settings.personal, "off"),
        ("evaluation.membership.attack", settings.membership.attack, "off"),
        ("partition.long_tail", config.partition.long_tail, None),
        ("tracking.feature_global", pictures.feature_global, False),
        ("tracking.loss_surface.rounds", pictures.loss_surface.rounds, []),
    )
    check_required(wanted, f"another value {why}")
