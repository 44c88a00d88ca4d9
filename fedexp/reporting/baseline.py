"""The baseline of each row of a report: another row, with which the row is compared."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from fedexp.config.keys import is_below, override_key
from fedexp.errors import InputError
from fedexp.reporting.labels import Label, show, text
from fedexp.reporting.runs import Run

Baselines = Mapping[Label, Label]
"""Label -> label of its baseline; a baseline's label is mapped to itself."""

_POPULATION = ("data", "partition", "clients")
_NO_VALUE = show(None)


def parse_baseline(baseline: str, runs: Sequence[Run], labels: Sequence[Label]) -> Label:
    """Parse overrides such as ``algorithm=fedavg regularizer.mu=0.1`` into (key, value) pairs.

    A pair that all runs have is left out. If the labels lack a pair's key, because other keys
    determine it, the pairs that mean the same take its place.

    Raises:
        InputError: no label has all pairs, every run has every pair, or the labels have no pair
            that means the same.
    """
    pairs = [(override_key(each), each.partition("=")[2]) for each in baseline.split()]
    pairs = [(k, v) for k, v in pairs if any(show(run.values.get(k)) != v for run in runs)]
    if not pairs:
        raise InputError(f"baseline={baseline}: every run has it, so there is nothing to compare")
    known = ", ".join(dict.fromkeys(map(text, labels)))
    found: dict[tuple[str, str], None] = {}
    for key, value in pairs:
        same = _of_same_runs((key, value), runs, labels)
        if not same:
            raise InputError(f"baseline={baseline}: no row has the key {key}; there are: {known}")
        found |= dict.fromkeys(same)
    if not any(found.keys() <= set(label) for label in labels):
        advice = _similar(tuple(found), labels)
        raise InputError(f"baseline={baseline}: no run has it{advice}; there are: {known}")
    return tuple(found)


def _of_same_runs(
    pair: tuple[str, str], runs: Sequence[Run], labels: Sequence[Label]
) -> Iterable[tuple[str, str]]:
    """The pair if labels have its key, or no run has it; else their pairs of exactly its runs.

    The key ``algorithm`` is in no label if ``loss`` was typed before it and determines it. Then
    ``loss=cross_entropy`` may be the pair of exactly the runs with ``algorithm=fedavg``.
    """
    key, value = pair
    having = [show(run.values.get(key)) == value for run in runs]
    if key in dict(labels[0]) or not any(having):
        return [pair]
    every = dict.fromkeys(each for label in labels for each in label)
    return [each for each in every if [each in label for label in labels] == having]


def _similar(pairs: Label, labels: Sequence[Label]) -> str:
    """A question that names a label's pairs with values like these; empty if there are none.

    A user may have typed the value alone, such as ``fedavg``.
    """
    meant = []
    for key, value in pairs:
        known = {own[1]: own for label in labels for own in label if not value or own[0] == key}
        meant += [known[each] for each in get_close_matches(value or key, list(known), n=1)]
    fits = len(meant) == len(pairs) and any(set(meant) <= set(label) for label in labels)
    return f" (did you mean {text(tuple(meant))}?)" if fits else ""


def find_baselines(labels: Iterable[Label], baseline: Label) -> tuple[Baselines, list[str]]:
    """Find the baseline of each label among the labels with the pairs of ``baseline``.

    A label's baseline has the pairs of ``baseline``, and the label's values for all other keys. If
    there is no such label, the baseline may have null where the label has a value, for example for
    ``regularizer.mu``, but not for keys of data, partition and clients. Then exactly one label must
    fit.

    Args:
        labels: the labels of all runs.
        baseline: the pairs that every baseline has, such as ``(("algorithm", "fedavg"),)``.

    Returns:
        The baselines, and a line for each label without a baseline.
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
    """Whether ``row`` may be the baseline of ``label``.

    Each value of ``row`` must equal the label's value, or be null for a key outside data, partition
    and clients. Keys of ``baseline`` may have any value.
    """
    named = dict(baseline)
    return all(
        key in named or own == value or (own == _NO_VALUE and not is_below(key, _POPULATION))
        for (key, own), (_, value) in zip(row, label, strict=True)
    )
