"""Makes a run's name for dashboards, from method, data, partition, seed and changed settings."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedexp.config.keys import RECORDS, is_below, is_cost, override_key
from fedexp.tracking.tracker import RunInfo

LONGEST = 128  # W&B refuses longer names
_SKEW = ("beta", "classes_per_client")  # their values follow the partition's name
_NAMED = ("algorithm", "data", "partition", "seed", *(f"partition.{key}" for key in _SKEW))
_SILENT = (*RECORDS, "objective", "data.root", "hydra", "paper")


def run_name(run: RunInfo) -> str | None:
    """The name of a run, for example ``fednh-digits-dir0.3-s0-rho0.9``.

    After the seed (``s0``) come other settings from the command line or the sweep that can change
    the results, such as ``head.rho=0.9``. The result is None if the choices of the run are
    unknown.
    """
    if not run.choices:
        return None
    chosen = (run.choices.get(group) for group in ("algorithm", "data"))
    parts = [*filter(None, chosen), _partition(run), f"s{run.config.get('seed', 0)}"]
    return "-".join([*filter(None, parts), *_changes(run)])[:LONGEST]


def columns(run: RunInfo) -> dict[str, str]:
    """Column -> chosen option of a config group; dashboards can group runs by these columns.

    A column has the name of its group, such as ``algorithm``. If ``run.config`` uses this name as a
    key, ``_option`` is added: the column of the group ``data`` is ``data_option``.
    """
    return {
        f"{group}_option" if group in run.config else group: option
        for group, option in run.choices.items()
        if option is not None and not group.startswith(("method", "hydra"))
    }


def _partition(run: RunInfo) -> str:
    option = (run.choices.get("partition") or "").replace("dirichlet", "dir")
    values: Mapping[str, Any] = run.config.get("partition", {})
    return option + next((_text(values[key]) for key in _SKEW if key in values), "")


def _changes(run: RunInfo) -> Iterator[str]:
    for override in run.overrides:
        key = override_key(override)
        dotted = key.replace("/", ".")
        if key in _NAMED or is_below(dotted, _SILENT) or is_cost(dotted):
            continue
        value = override.partition("=")[2]
        yield value if key in run.choices else f"{key.rpartition('.')[2]}{_text(value)}"


def _text(value: object) -> str:
    """The value as text; numbers are shortened: 0.30000000000000004 becomes 0.3."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return str(value)
