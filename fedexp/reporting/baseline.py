"""Which row of a report each of the others is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedexp.config.keys import is_below, override_key
from fedexp.errors import InputError
from fedexp.reporting.labels import Label, show, text
from fedexp.reporting.runs import Run

Baselines = Mapping[Label, Label]
"""Label -> that of the row it is compared with; a baseline's own is itself."""

_POPULATION = ("data", "partition", "clients")
_NO_VALUE = show(None)


def parse_baseline(baseline: str, runs: Sequence[Run], labels: Sequence[Label]) -> Label:
    """The pairs of ``algorithm=fedavg regularizer.mu=0.1`` that not all runs have.

    Raises:
        InputError: no run has them, or every run.
    """
    pairs = [(override_key(each), each.partition("=")[2]) for each in baseline.split()]
    pairs = [(k, v) for k, v in pairs if any(show(run.values.get(k)) != v for run in runs)]
    if not pairs:
        raise InputError(f"baseline={baseline}: every run has it, so there is nothing to compare")
    if not any(set(pairs) <= set(label) for label in labels):
        known = ", ".join(dict.fromkeys(map(text, labels)))
        raise InputError(f"baseline={baseline}: no run has it; there are: {known}")
    return tuple(pairs)


def find_baselines(labels: Iterable[Label], baseline: Label) -> tuple[Baselines, list[str]]:
    """Each label's baseline: the one with the same other keys.

    If there is none, it is the only one whose other values are the same or null: a key of one
    method alone, such as ``regularizer.mu``, has no value in the others. That of the data, their
    partition and the clients has to be the same.

    Args:
        labels: of all runs.
        baseline: what makes a row a baseline, such as ``(("algorithm", "fedavg"),)``.

    Returns:
        The baselines, and a line for each label that has none.
    """
    found: dict[Label, Label] = {}
    problems = []
    labels = list(dict.fromkeys(labels))
    rows = [label for label in labels if set(baseline) <= set(label)]
    for label in labels if baseline else ():
        exact = tuple((dict(label) | dict(baseline)).items())
        fitting = [exact] if exact in rows else [r for r in rows if _fits(r, label, baseline)]
        if len(fitting) == 1:
            found[label] = fitting[0]
        else:
            which = f"{len(fitting)} baselines fit" if fitting else f"no {text(baseline)} fits it"
            problems.append(f"{text(label)}: not compared with a baseline, as {which}")
    return found, problems


def _fits(row: Label, label: Label, baseline: Label) -> bool:
    """Whether the row has the label's values, or null where only the label's method has one."""
    named = dict(baseline)
    return all(
        key in named or own == value or (own == _NO_VALUE and not is_below(key, _POPULATION))
        for (key, own), (_, value) in zip(row, label, strict=True)
    )
