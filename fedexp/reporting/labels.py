"""Labels of runs: the config keys that tell runs apart, without redundant keys."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from fedexp.config.keys import RECORDS, is_below, is_cost, override_key
from fedexp.drawing.texts import legible
from fedexp.reporting.runs import Run

_IGNORED = (*RECORDS, "seed", "paper", "objective", "method", "hydra")
_OF_EVALUATION = ("evaluation", "measure", "data.root")
PARTS = (
    *("head", "loss", "regularizer", "gradient", "personalization", "sampler", "aggregator"),
    *("compression", "coordination"),
)
"""Config groups of a method's parts."""
Label = tuple[tuple[str, str], ...]
"""(Key, value) pairs in the order of a table's columns, such as ``(("algorithm", "fedavg"),)``."""


def label_runs(runs: Sequence[Run], always: Collection[str] = ()) -> list[Label]:
    """Label each run with the config keys in which the runs differ.

    The seed is left out, and so are keys that follow it (see ``follows_seed``), and keys that only
    change what a run writes, such as ``tracking``.
    Config groups on the command lines come first, then keys on the command lines, then other groups
    and keys. A key that earlier keys determine is left out: ``algorithm`` often determines ``head``
    and ``loss``. A key that only changes costs, such as ``engine``, is used only if runs with equal
    seed would otherwise have equal labels.

    Args:
        runs: the runs.
        always: keys that are used even if earlier keys determine them.

    Returns:
        One label for each run. All labels have the same keys; if no key differs, labels are empty.
    """
    columns: list[tuple[str, list[Hashable]]] = []
    parts: list[tuple[Hashable, ...]] = [() for _ in runs]
    for key in _candidates(runs):
        costs_only = not changes_results(key)
        if costs_only and len(set(_with_seeds(parts, runs))) == len(runs):
            break
        values = [hashable(run.values.get(key)) for run in runs]
        joined = [(*part, value) for part, value in zip(parts, values, strict=True)]
        before, after = (
            _with_seeds(each, runs) if costs_only else each for each in (parts, joined)
        )
        if len(set(after)) > len(set(before)) or key in always:
            columns.append((key, values))
            parts = joined
    return [tuple((key, show(values[n])) for key, values in columns) for n in range(len(runs))]


def text(label: Label) -> str:
    """A label as overrides, such as ``algorithm=fedavg partition.beta=0.1``; ``all`` if empty."""
    return " ".join(f"{key}={value}" for key, value in label) or "all"


def short_texts(labels: Sequence[Label]) -> list[str]:
    """Short forms of the labels for a legend: ``algorithm=fedavg`` becomes ``fedavg``.

    The key of a value loses its prefix: ``partition.beta=0.1`` becomes ``beta=0.1``. A repeated
    short form gets a number, such as ``fedavg (2)``.
    """
    texts = [" ".join(_short(key, value) for key, value in label) or "all" for label in labels]
    seen: Counter[str] = Counter()
    for number, text in enumerate(texts):  # shortened texts may be equal
        seen[text] += 1
        if seen[text] > 1:
            texts[number] = f"{text} ({seen[text]})"
    return texts


def show(value: object) -> str:
    """A config's value in the form that the command line accepts."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, tuple | list):
        return f"[{','.join(map(show, value))}]"
    return str(value)


def changes_results(key: str) -> bool:
    """Whether a key can change the trained model, not only costs or what the run writes."""
    dotted = _dotted(key)
    return not is_below(dotted, _IGNORED + _OF_EVALUATION) and not is_cost(dotted)


def follows_seed(key: str, runs: Iterable[Run]) -> bool:
    """Whether a key such as ``data.split_seed`` equals the seed in each run that has it.

    A preset may say ``data.split_seed=${seed}``. False if these runs have only one seed.
    """
    name = key.rpartition(".")[2]
    if name != "seed" and not name.endswith("_seed"):
        return False
    found = {(run.seed, hashable(run.values[key])) for run in runs if key in run.values}
    return len(found) > 1 and all(seed == value for seed, value in found)


def _dotted(key: str) -> str:
    """Turn a config group such as ``hydra/launcher`` or ``method@_global_`` into a dotted key."""
    return key.replace("/", ".").replace("@", ".")


def _short(key: str, value: str) -> str:
    is_name = "." not in key and value[:1].isalpha() and value not in ("true", "false", "null")
    return legible(value if is_name else f"{key.rpartition('.')[2]}={value}")


def _candidates(runs: Sequence[Run]) -> Iterator[str]:
    """Yield each key of the runs once, in the order in which ``label_runs`` considers the keys."""
    named = [override_key(each) for run in runs for each in run.overrides]
    groups = list(dict.fromkeys(key for run in runs for key in run.choices))
    typed = sorted(dict.fromkeys(named), key=lambda key: key not in groups)
    rest = [key for run in runs for key in run.values]
    # The values that an experiment or a search sets say more than its name.
    late = [key for key in typed + groups if key in ("experiment", "protocol", "search")]
    order = dict.fromkeys([*(key for key in typed + groups if key not in late), *rest, *late])
    known = [key for key in order if not is_below(_dotted(key), _IGNORED)]
    known = [key for key in known if not follows_seed(key, runs)]
    yield from filter(changes_results, known)
    yield from (key for key in known if not changes_results(key))


def _with_seeds(parts: Iterable[Hashable], runs: Sequence[Run]) -> list[Hashable]:
    return [(part, run.seed) for part, run in zip(parts, runs, strict=True)]


def hashable(value: object) -> Hashable:
    """Make a config's value hashable: lists and mappings become tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if isinstance(value, dict):
        return tuple((key, hashable(each)) for key, each in value.items())
    return value
