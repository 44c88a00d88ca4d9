"""The outcome of a check."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


class Outcome(IntEnum):
    """The outcome; its number is the exit code of the command."""

    SAME = 0
    DIFFERS = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check, in words.

    Attributes:
        place: the run, report or file that was checked.
        outcome: whether its numbers were found again; UNKNOWN if they cannot be compared.
        line: the outcome in a sentence.
        details: further lines: what differs, and why.
    """

    place: str
    outcome: Outcome
    line: str
    details: list[str] = field(default_factory=list)


def worst(verdicts: Iterable[Verdict]) -> Outcome:
    """DIFFERS if anything differs, else UNKNOWN if anything cannot be compared, else SAME."""
    found = {each.outcome for each in verdicts}
    order = (Outcome.DIFFERS, Outcome.UNKNOWN, Outcome.SAME)
    return next((each for each in order if each in found), Outcome.UNKNOWN)
