"""The design of a factorial experiment: which combinations of options are run.

Each factor has a low and a high level, and a level sets one or several keys of the config. All
combinations of the levels are run, or a fraction of them: the level of a factor with a generator is
the product of other factors' levels, where low is -1 and high is 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedexp.errors import InputError
from fedexp.reporting.jobs import values_of
from fedexp.reporting.runs import UNREADABLE, read_yaml

LOW, HIGH = -1, 1
KEY = "hydra.sweeper.factorial"
Level = Mapping[str, str]
"""Key -> value, as typed on the command line."""
Signs = Mapping[str, int]
"""Factor -> LOW or HIGH."""
Effect = tuple[str, ...]
"""One factor: its main effect. Two factors: their interaction."""


@dataclass(frozen=True)
class Design:
    """The factors of an experiment and the combinations that are run.

    Attributes:
        factors: factor -> its low and its high level.
        generators: factor -> the factors whose levels are multiplied to give its level.
    """

    factors: Mapping[str, tuple[Level, Level]]
    generators: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, node: Mapping[str, Any]) -> Design | None:
        """Read ``hydra.sweeper.factorial``; None if it has no factors. Raises InputError."""
        factors = {name: _levels(name, levels) for name, levels in node["factors"].items()}
        if not factors:
            return None
        made = cls(factors, {name: tuple(each) for name, each in node["generators"].items()})
        made._check()
        return made

    @classmethod
    def of_sweep(cls, folder: Path) -> Design | None:
        """The design of the sweep in ``folder``; None if it is no factorial experiment."""
        try:
            node = read_yaml(folder / "multirun.yaml")["hydra"]["sweeper"].get("factorial")
            return cls.read(node) if node else None
        except InputError:
            raise
        except UNREADABLE:
            return None

    @cached_property
    def combinations(self) -> Sequence[Signs]:
        """The signs of each combination that is run."""
        free = [name for name in self.factors if name not in self.generators]
        found = []
        for signs in itertools.product((LOW, HIGH), repeat=len(free)):
            of = dict(zip(free, signs, strict=True))
            for name, factors in self.generators.items():
                of[name] = math.prod(of[each] for each in factors)
            found.append({name: of[name] for name in self.factors})
        return found

    def parts(self) -> Sequence[Level]:
        """The overrides of each combination."""
        return [
            {k: v for name, sign in signs.items() for k, v in self.level(name, sign).items()}
            for signs in self.combinations
        ]

    @property
    def effects(self) -> list[Effect]:
        """The main effects, then the interactions of two factors."""
        return [(name,) for name in self.factors] + list(itertools.combinations(self.factors, 2))

    @property
    def resolution(self) -> int | None:
        """The length of the shortest product of factors that is constant; None if all are run."""
        for length in range(1, len(self.factors) + 1):
            for names in itertools.combinations(self.factors, length):
                if len(set(self.column(names))) == 1:
                    return length
        return None

    def column(self, effect: Effect) -> tuple[int, ...]:
        """The product of the factors' signs in each combination."""
        return tuple(math.prod(signs[name] for name in effect) for signs in self.combinations)

    def level(self, name: str, sign: int) -> Level:
        """A level of a factor."""
        return self.factors[name][sign == HIGH]

    def signs_of(self, overrides: Sequence[str]) -> Signs | None:
        """The combination of a run with these overrides; None if it is none of this design."""
        typed = set(overrides)
        for signs in self.combinations:
            levels = [self.level(name, sign).items() for name, sign in signs.items()]
            if all(f"{key}={value}" in typed for level in levels for key, value in level):
                return signs
        return None

    def check_typed(self, typed: Mapping[str, Sequence[str]]) -> None:
        """Raise InputError if a value on the command line is none of the levels of its key."""
        for key in typed.keys() & self.keys:
            levels = [each for pair in self.factors.values() for each in pair]
            known = list(dict.fromkeys(each[key] for each in levels if key in each))
            if wrong := [value for value in typed[key] if value not in known]:
                raise InputError(
                    f"{key}={wrong[0]}: is no level of this factorial experiment, which has "
                    f"{', '.join(known)}; change {KEY}.factors in a file of your own"
                )

    def highs(self, overrides: Sequence[str]) -> int:
        """The number of high levels of a run with these overrides."""
        return list((self.signs_of(overrides) or {}).values()).count(HIGH)

    @property
    def keys(self) -> frozenset[str]:
        """Every key that a level sets."""
        return frozenset(key for levels in self.factors.values() for each in levels for key in each)

    def size(self) -> str:
        """A line such as ``factorial: head, loss, sampler; 4 of 8 combinations``."""
        of = 2 ** len(self.factors)
        return (
            f"factorial: {', '.join(self.factors)}; {len(self.combinations)} of {of} combinations"
        )

    def _check(self) -> None:
        """Raise InputError if two factors set a key to different values, generators are wrong, or
        two effects cannot be told apart.
        """
        for first, second in itertools.combinations(self.factors, 2):
            for level, second_level in itertools.product(self.factors[first], self.factors[second]):
                shared = level.keys() & second_level.keys()
                if both := sorted(key for key in shared if level[key] != second_level[key]):
                    raise InputError(
                        f"{KEY}.factors: {first} and {second} set {both[0]} to different values; a "
                        "key should belong to one factor"
                    )
        for name, of in self.generators.items():
            wrong = [each for each in (name, *of) if each not in self.factors]
            wrong += [each for each in of if each in self.generators]
            if wrong or not of:
                free = ", ".join(each for each in self.factors if each not in self.generators)
                raise InputError(
                    f"{KEY}.generators.{name}: should be factors without a generator ({free})"
                )
        seen: dict[tuple[int, ...], Effect] = {}
        for effect in self.effects:
            column = self.column(effect)
            sames = [column, tuple(-each for each in column)]
            other = next((seen[each] for each in sames if each in seen), None)
            if other is not None or len(set(column)) == 1:
                same = "a constant" if other is None else " x ".join(other)
                raise InputError(
                    f"{KEY}.generators: {' x '.join(effect)} could not be told from {same}; "
                    "multiply more factors, or run all combinations with {}"
                )
            seen[column] = effect


def _levels(name: str, levels: Any) -> tuple[Level, Level]:
    """The two levels of a factor. Raises InputError."""
    right = isinstance(levels, list) and len(levels) == 2
    if not right or not all(isinstance(each, Mapping) and each for each in levels):
        raise InputError(
            f"{KEY}.factors.{name}={levels}: should be two levels, each with keys and values, "
            "such as [{head: linear}, {head: prototype}]"
        )
    low, high = ({str(k): _one_value(name, k, v) for k, v in each.items()} for each in levels)
    if low.items() <= high.items() or high.items() <= low.items():
        raise InputError(f"{KEY}.factors.{name}: its levels should set different values of a key")
    return low, high


def _one_value(name: str, key: str, value: Any) -> str:
    found = values_of(value)
    if len(found) != 1:
        raise InputError(f"{KEY}.factors.{name}: {key}={value} should be one value")
    return found[0]
