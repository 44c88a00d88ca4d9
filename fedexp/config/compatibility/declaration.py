"""Allowed combinations: each component declares its traits, and the traits it needs or forbids.

Components are parts, measures, engines, models, optimizers, data and settings of the config.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from types import MappingProxyType
from typing import Any

from fedexp.config.compatibility.traits import FIXED_HEAD, LEFT_OUT_HEAD
from fedexp.errors import InputError

UnreadWith = Mapping[str, Collection[Any] | Callable[[Any], bool]]
"""Another key -> the values with which an argument has no effect, or a function that says so.

A name without a dot is another argument of the same target, a name with a dot a key of the config.
If there are several keys, one of them is enough.
"""


class Declares:
    """The base of parts, engines, faults and coordinations: what a component says about others.

    Attributes:
        traits: properties that other components (parts, models, data, settings ...) may need or
            forbid; see ``fedexp.config.compatibility.traits``.
        needs: trait -> the error message if no other component has the trait.
        forbids: trait -> the error message if another component has the trait. ``{other}`` stands
            for the key of the first such component.
        discourages: trait -> the warning if another component has the trait. ``{other}`` stands for
            the key of the first such component.
        unread_if: argument -> when nothing reads it; see ``fedexp.config.compatibility.unread``.
        unread: key of another component that this one makes useless -> why, such as
            "with faults.straggle=0".
        reads: keys of other components that this one uses.
    """

    traits: frozenset[str] = frozenset()
    needs: Mapping[str, str] = MappingProxyType({})
    forbids: Mapping[str, str] = MappingProxyType({})
    discourages: Mapping[str, str] = MappingProxyType({})
    unread_if: Mapping[str, UnreadWith] = MappingProxyType({})
    unread: Mapping[str, str] = MappingProxyType({})
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Declaration:
    """The traits of one component, and the traits of others that it needs, forbids or discourages.

    Attributes:
        key: the component's name in error lines, such as "head" or "engine.compile=true".
        traits, needs, forbids, discourages, unread, reads: as in ``Declares``.
    """

    key: str
    traits: frozenset[str] = frozenset()
    needs: Mapping[str, str] = field(default_factory=dict)
    forbids: Mapping[str, str] = field(default_factory=dict)
    discourages: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()


def declared(key: str, component: object) -> Declaration:
    """Read a component's declaration from its attributes ``traits``, ``needs``, and so on."""
    names = ("traits", "needs", "forbids", "discourages", "unread", "reads")
    return Declaration(key, **{n: getattr(component, n) for n in names if hasattr(component, n)})


def needed(subject: str, trait: str, lacking: str, advice: str) -> dict[str, str]:
    """Make an entry of ``needs``: trait -> the error that is raised if no component has it.

    Args:
        subject: the component that needs the trait.
        trait: the trait.
        lacking: the component that could have the trait but lacks it, such as the dataset.
        advice: how to change the config.
    """
    return {trait: f"{subject}: needs {trait}, which {lacking} lacks; {advice}"}


TRAINED_HEAD = {
    LEFT_OUT_HEAD: "model.train leaves out the head, which clients must train; add head to "
    "model.train"
}
"""``forbids`` of a head whose trained weights the server needs."""


def needs_trained_head(untrained: str) -> dict[str, str]:
    """Make entries of ``forbids``: each trait of a head that does not train -> the error.

    Args:
        untrained: what such a head does, such as "trains nothing that clients could share".
    """
    return {
        FIXED_HEAD: f"{{other}}: {untrained}; with this personalization use head=linear or "
        "head=cosine",
        LEFT_OUT_HEAD: f"model.train leaves out the head ({{other}}), which then {untrained}; add "
        "head to model.train",
    }


def check(declarations: Sequence[Declaration], logger: Logger) -> None:
    """Raise InputError for the first conflict; log a warning for discouraged combinations."""
    for declaration in declarations:
        others = [each for each in declarations if each is not declaration]
        for trait, message in declaration.needs.items():
            if not _having(trait, others):
                raise InputError(message)
        for trait, message in declaration.forbids.items():
            if having := _having(trait, others):
                raise InputError(message.format(other=having[0]))
        for trait, message in declaration.discourages.items():
            if having := _having(trait, others):
                logger.warning(message.format(other=having[0]))


def _having(trait: str, declarations: Sequence[Declaration]) -> list[str]:
    """Keys of the components with this trait."""
    return [each.key for each in declarations if trait in each.traits]
