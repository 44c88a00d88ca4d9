"""Tables of our numbers beside the published numbers."""

import math
from collections.abc import Iterable, Sequence

from fedexp.reporting import table as tables
from fedexp.reporting.families import stars_of
from fedexp.reporting.interval import NOT_REACHED
from fedexp.reporting.papers.cells import Cell
from fedexp.reporting.papers.verdicts import NOT_RUN, Verdict
from fedexp.reporting.table import Mark, Table, mean_and_deviation, number, signed, with_interval

VERDICT, RECENT, COULD_SHOW = "verdict", "gain, last 5", "could show"
_OPTIONAL = ("gap", "n", "gain, paper", RECENT, COULD_SHOW, "gain, ours")
_NOTES = {
    RECENT: f"{RECENT}: in the mean of the last five measurements; the best round, which the paper "
    "reports, is chosen by the test data.",
    COULD_SHOW: f"{COULD_SHOW}: the smallest gain that so many seeds show with 80 % power (paired "
    "t-test at 5 %, with the observed deviation of the differences).",
}
"""Column -> its note; a table has this column only if one of its cells is not empty."""


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
    stars = stars_of([each.gain for each in verdicts])
    rows = list(map(_row, method_names(verdicts), verdicts, stars))
    columns = [each for each in rows[0] if each not in _NOTES or any(row[each] for row in rows)]
    marks: dict[tuple[int, int], Mark] = {
        (n, columns.index(VERDICT)): "alarm"
        for n, verdict in enumerate(verdicts)
        if verdict.contradicts or verdict.words == NOT_REACHED
    }
    notes = [*_notes(verdicts), *([tables.STARS] if any(stars) else [])]
    notes += [note for column, note in _NOTES.items() if column in columns]
    shown = [[row[each] for each in columns] for row in rows]
    optional = tuple(each for each in _OPTIONAL if each in columns)
    return Table(title, columns, shown, marks, notes, optional=optional)


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


def _row(name: str, verdict: Verdict, stars: str) -> dict[str, str]:
    """Column -> its cell."""
    cell, metric = verdict.cell, verdict.cell.metric
    published = number(cell.published, metric)
    if cell.spread is not None:
        published += f" ± {number(cell.spread, metric)}"
    n = f"{len(cell.ours)} of {cell.seeds}" if cell.partial else str(len(cell.ours))
    has_gap = cell.has_value and not cell.at_bound
    could_show = verdict.smallest_gain
    ours = mean_and_deviation(cell.mean, math.nan, metric, cell.at_bound, len(cell.ours))
    gain, recent = verdict.gain, verdict.recent_gain
    return {
        "method": name,
        "paper": published,
        "ours": ours if cell.ours else "",
        "n": n if cell.ran else "",
        "gain, paper": signed(verdict.published_gain, metric),
        "gain, ours": "" if gain is None else with_interval(gain, metric, stars),
        RECENT: "" if recent is None else with_interval(recent, metric),
        VERDICT: verdict.words,
        COULD_SHOW: "" if could_show is None else number(could_show, metric),
        "gap": signed(cell.mean - cell.published, metric) if has_gap else "",
    }


def _notes(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The differences from the paper's protocol, and the commands for missing cells."""
    differs: dict[str, list[str]] = {}
    for cell in (verdict.cell for verdict in verdicts):
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
    yield from dict.fromkeys(each.cell.varies for each in verdicts if each.cell.varies)
    if any(each.cell.at_bound for each in verdicts):
        yield tables.AT_BOUND
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
