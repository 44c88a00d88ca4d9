"""The setting of runs in one line, and the random draws that differ between their seeds."""

from collections.abc import Sequence
from typing import Any

from fedexp.reporting.labels import follows_seed, show
from fedexp.reporting.runs import Run
from fedexp.rounding import rounded_down

_DEGREES = ("partition.beta", "partition.alphas", "partition.classes_per_client")
"""Config keys that say how much the clients' data differ."""
_FIXED = "partition.draw_seed"
"""Config key: a seed of the partition alone; null if the run's seed draws the partition."""
_SPLIT = "data.split_seed"
"""Config key: the seed that draws the test split."""
_SAMPLES = "data.seed"
"""Config key: the seed of samples that are drawn, not read; a client's own if it is a user."""
_FROM_SEED = ("partition.long_tail", "data.subset")
"""Config keys that remove samples before the partition; the run's seed chooses them."""
_DRAWN = {"availability": "availability", "system": "devices", "faults": "faults"}
"""Config group -> what its options draw by the run's seed."""
_NOT_DRAWN = (None, "always", "none", "trace", "table")  # a table's rows may be the clients' own
_LOADED = "model.start_from"
"""Config key: a file with all weights of the backbone. Others, such as ``model.weights``, may lack
a layer that is drawn."""
_MOST = 4
"""Largest number of values of a key that are listed; more values are only counted."""


def setting_of(runs: Sequence[Run]) -> str:
    """The setting as a line: ``data=digits, partition=dirichlet, 10 of 20 clients ...``.

    If runs differ in a value, all values are shown, joined by slashes.
    """
    parts = [
        f"{key}={found}" for key in ("data", "partition", *_DEGREES) if (found := _all(runs, key))
    ]
    clients = _joined([f"{_of(r, 'clients.per_round')} of {_of(r, 'clients.count')}" for r in runs])
    parts += [f"{clients} clients a round", f"{_all(runs, 'rounds')} rounds"]
    parts += [f"model={found}" for found in [_all(runs, "model")] if found]
    return ", ".join(parts)


def random_sources(runs: Sequence[Run]) -> str:
    """A sentence that names the draws that the seed changes; empty for one seed.

    A partition with a ``draw_seed`` of its own, of the first users, or of users whose samples are
    drawn with a seed of their own, is the same for all seeds if the seed does not choose the
    samples. Cohorts are drawn only if a round has fewer clients than train. Of a backbone whose
    weights are loaded, only the head is drawn.
    """
    if len({run.seed for run in runs}) < 2:
        return ""

    def of_runs(key: str) -> list[Any]:
        return [run.values.get(key) for run in runs]

    draws_samples, draws_split = (follows_seed(key, runs) for key in (_SAMPLES, _SPLIT))
    draws_partition = draws_samples or draws_split or follows_seed(_FIXED, runs)
    fixed = dict.fromkeys(None if draws_partition else _fixed_by(run) for run in runs)
    own = [each for each in fixed if each is not None]
    varied = ["samples"] if draws_samples else ["test split"] if draws_split else []
    varied += ["partition"] if None in fixed else []
    varied += ["validation samples"] if own and any(of_runs("data.validation")) else []
    varied += ["the clients' transformations"] if any(of_runs("partition.shift.kinds")) else []
    varied += ["held-out clients"] if any(map(_share_held_out, runs)) else []
    varied += [
        "initial weights" if any(map(_draws_backbone, runs)) else "the head's initial weights"
    ]
    varied += ["cohorts"] if any(map(_draws_cohorts, runs)) else []
    varied += [
        name for key, name in _DRAWN.items() if any(v not in _NOT_DRAWN for v in of_runs(key))
    ]
    draws_epochs = any(isinstance(each, list | tuple) for each in of_runs("local.epochs"))
    varied += ["local epochs"] if draws_epochs else []
    text = f"The seed changes {', '.join(varied)} and batches"
    if not own:
        return f"{text}."
    return f"{text}; the partition is the same for all seeds with {' or '.join(own)}."


def _fixed_by(run: Run) -> str | None:
    """The key that makes the partition the same for all seeds; None if the seed may draw it."""
    if any(run.values.get(key) is not None for key in _FROM_SEED):
        return None
    if run.values.get(_FIXED) is not None:
        return f"{_FIXED}={run.values[_FIXED]}"
    is_cut = run.values.get("partition.split_users") == "even"  # at random, if users are few
    if run.values.get("partition.take") == "first" and not is_cut:
        return "partition.take=first"
    is_drawn = run.values.get("partition") == "natural" and run.values.get(_SAMPLES) is not None
    return f"{_SAMPLES}={run.values[_SAMPLES]}" if is_drawn else None


def _all(runs: Sequence[Run], key: str) -> str:
    """The values of a key in the runs that have it; empty if no run has the key."""
    return _joined([_of(run, key) for run in runs if run.values.get(key) is not None])


def _of(run: Run, key: str) -> str:
    return show(run.values.get(key))


def _joined(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    return "/".join(different) if len(different) <= _MOST else f"{len(different)} values"


def _share_held_out(run: Run) -> float:
    return float(run.values.get("clients.held_out") or 0)


def _draws_cohorts(run: Run) -> bool:
    if run.values.get("sampler") == "round_robin":
        return False
    count, share = run.values.get("clients.count", 0), _share_held_out(run)
    return bool(run.values.get("clients.per_round") != count - rounded_down(share, count))


def _draws_backbone(run: Run) -> bool:
    """Whether the seed draws weights of the backbone, or LoRA's updates of them."""
    is_loaded = run.values.get(_LOADED) is not None
    return not is_loaded or run.values.get("model.lora.rank") is not None
