"""Looks up the classes and super-classes that a config names."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from fedexp.core.description import Description
from fedexp.errors import InputError


def class_numbers(chosen: Sequence[int | str], about: Description) -> list[int]:
    """The numbers of the classes in ``measure.features.classes``, each once; all if it is empty.

    A config names a class by number or by name. If no class has exactly this name, upper and lower
    case count as equal, and so do spaces, hyphens and underscores. Raises InputError for an unknown
    class.
    """
    alike = {_plain(name): number for number, name in enumerate(about.classes)}
    exact = {name: number for number, name in enumerate(about.classes)}
    found = []
    for each in chosen:
        number = each if isinstance(each, int) else exact.get(each, alike.get(_plain(each), -1))
        if not 0 <= number < about.num_classes:
            problem = f"{each} is not a class of {about.name}, numbers 0 to {about.num_classes - 1}"
            name = "" if isinstance(each, int) else each
            raise _unknown("features.classes", chosen, problem, name, about.classes)
        found.append(number)
    return list(dict.fromkeys(found)) or list(range(about.num_classes))


def superclass_pairs(chosen: Sequence[Sequence[str]], about: Description) -> list[tuple[str, str]]:
    """The pairs of super-classes in ``measure.prototypes.zoom``, with the dataset's names.

    Upper and lower case count as equal, and so do spaces, hyphens and underscores:
    ``Aquatic_mammals`` is ``aquatic mammals``. Raises InputError for an unknown super-class.
    """
    known = {_plain(name): name for name in about.superclasses}
    for each in (name for pair in chosen for name in pair):
        if _plain(each) not in known:
            problem = f"{each} is not a super-class of {about.name}"
            if not known:
                problem = f"{about.name} has no super-classes; should be []"
            raise _unknown("prototypes.zoom", chosen, problem, each, about.superclasses)
    return [(known[_plain(rows)], known[_plain(columns)]) for rows, columns in chosen]


def _plain(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "_", name.lower())


def _unknown(
    key: str, value: Sequence[object], problem: str, name: str, known: Sequence[str]
) -> InputError:
    shown = {_plain(each): each for each in known}
    close = ", ".join(shown[each] for each in get_close_matches(_plain(name), shown))
    meant = f"; close to it: {close}" if close else ""
    return InputError(f"measure.{key}={list(value)}: {problem}{meant}")
