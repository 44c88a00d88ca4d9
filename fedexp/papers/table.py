"""Tables of our numbers beside the published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedexp.papers.cells import Cell
from fedexp.papers.verdicts import NOT_REACHED, NOT_RUN, REVERSED, Verdict
from fedexp.reporting.table import STAR, Mark, Table, number, signed, with_interval

COLUMNS = ["method", "paper", "ours", "n", "gain, paper", "gain, ours", "verdict", "gap"]
_OPTIONAL = ("gap", "gain, paper", "gain, ours", "n")


def paper_tables(verdicts: Sequence[Verdict]) -> list[Table]:
    """One table for each experiment and column of a published table.

    Notes below a table name the runs' differences from the paper's protocol.
    """
    return [_table(members) for members in by_column(verdicts)]


def by_column(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Group the verdicts by experiment and column of the published table (``Cell.column``)."""
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.cell.experiment, *verdict.cell.column)
        groups.setdefault(key, []).append(verdict)
    return list(groups.values())


def _table(verdicts: Sequence[Verdict]) -> Table:
    cell = verdicts[0].cell
    table, metric, statistic, *extra = cell.column
    title = f"{cell.experiment}, {table}: {metric} ({statistic})"
    title += f", {' '.join(extra)}" if extra else ""
    marks: dict[tuple[int, int], Mark] = {
        (n, COLUMNS.index("verdict")): "alarm"
        for n, verdict in enumerate(verdicts)
        if verdict.words in (REVERSED, NOT_REACHED)
    }
    rows = [
        [name, *_row(each)] for name, each in zip(method_names(verdicts), verdicts, strict=True)
    ]
    return Table(title, COLUMNS, rows, marks, list(_notes(verdicts)), optional=_OPTIONAL)


def method_names(verdicts: Sequence[Verdict]) -> list[str]:
    """The name of each row's method; rows of one method also get their differing overrides."""
    rows: dict[str, list[Cell]] = {}
    for each in verdicts:
        rows.setdefault(each.cell.method, []).append(each.cell)
    common = {name: set.intersection(*(set(c.differs) for c in own)) for name, own in rows.items()}
    return [
        " ".join(
            [method_name(cell), *(_short(d) for d in cell.differs if d not in common[cell.method])]
        )
        for cell in (each.cell for each in verdicts)
    ]


def method_name(cell: Cell) -> str:
    """A short name of a method, made of the overrides that choose the method.

    An override that chooses an option is shortened to the option: ``algorithm=fednh`` becomes
    ``fednh``. An override that sets a value, such as ``loss.lam=0.1``, stays as typed.
    """
    return " ".join(map(_short, cell.method.split()))


def _short(override: str) -> str:
    key, _, value = override.partition("=")
    return value if "." not in key and value.isidentifier() else override


def _row(verdict: Verdict) -> list[str]:
    cell = verdict.cell
    published = number(cell.published, cell.metric)
    if cell.spread is not None:
        published += f" ± {number(cell.spread, cell.metric)}"
    ours = number(cell.mean, cell.metric) if cell.ours else ""
    gap = signed(cell.mean - cell.published, cell.metric) if cell.ours else ""
    gain = "" if verdict.gain is None else with_interval(verdict.gain, cell.metric)
    paper_gain = signed(verdict.published_gain, cell.metric)
    n = f"{len(cell.ours)} of {cell.seeds}" if cell.partial else str(len(cell.ours))
    return [published, ours, n if cell.ran else "", paper_gain, gain, verdict.words, gap]


def _notes(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The differences from the paper's protocol, and the commands for missing cells."""
    differs: dict[str, list[str]] = {}
    for verdict in verdicts:
        cell = verdict.cell
        changes = list(cell.differs)
        if cell.ran and cell.rounds < cell.planned:
            changes.append(f"{cell.rounds} of {cell.planned} rounds so far")
        for change in changes:
            differs.setdefault(change, []).append(method_name(cell))
    ran = sum(verdict.cell.ran for verdict in verdicts)
    together: dict[tuple[str, ...], list[str]] = {}
    for change, names in differs.items():
        who = () if len(names) == ran else tuple(dict.fromkeys(names))
        together.setdefault(who, []).append(change)
    for who, changes in together.items():
        whose = f" ({', '.join(who)})" if who else ""
        yield f"Differs from the protocol{whose}: {', '.join(changes)}."
    yield from dict.fromkeys(_what_lacks(each.cell) for each in verdicts if each.cell.lacks)
    if any(each.gain is not None and each.gain.excludes_zero for each in verdicts):
        yield STAR
    if any(each.cell.partial for each in verdicts):
        yield "n such as 1 of 3: the other seeds have no value and are in no mean."
    if any(each.cell.repeated for each in verdicts):
        yield "Of several runs with one seed the longest counts."
    yield from (f"Not run: {command}" for command in _missing(verdicts))


def _what_lacks(cell: Cell) -> str:
    """The warning about runs that lack an option of the published method."""
    lacked = " ".join(cell.lacks)
    return f"{method_name(cell)}: was run without {lacked}, so it is not this row's method."


def _missing(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The commands for cells that were not run; methods of one config group share a command."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for cell in (each.cell for each in verdicts if each.words == NOT_RUN):
        first, *rest = cell.method.split()
        key, _, name = first.partition("=")
        others = " ".join([*rest, *cell.overrides])
        methods.setdefault((cell.experiment, key, others), []).append(name)
    for (experiment, key, others), names in methods.items():
        sweep = "-m " if len(names) > 1 else ""
        yield f"fedexp {sweep}experiment={experiment} {key}={','.join(names)} {others}".rstrip()
