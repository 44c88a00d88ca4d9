"""The tables of all methods: what each sends, keeps, allows and costs."""

from functools import cache

import pytest
from generate.citation import venue
from generate.gallery import gallery
from generate.observed import REFUSERS, observed
from generate.options import find, options
from observe import observe

Row = dict[str, str]


@cache
def tables() -> list[dict[str, Row]]:
    """For each table of the page: method -> column -> cell."""
    found: list[dict[str, Row]] = []
    header: list[str] = []
    for line in gallery().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| method"):
            header = cells
            found.append({})
        elif line.startswith("| ["):
            found[-1][cells[0].split("]")[0].strip("[")] = dict(zip(header, cells, strict=True))
    return found


def needs(name: str) -> Row:
    """The method's row in the second table."""
    return tables()[1][name]


def test_both_tables_have_all_methods() -> None:
    """A method without facts needs ``bash scripts/docs.sh --observe NAME``."""
    names = [each.name for each in options("algorithm")]
    assert [list(rows) for rows in tables()] == [names, names]
    assert [name for name in names if observed(name) is None] == []


def test_a_row_of_another_task_says_so() -> None:
    marked = {"fedap", "fedbn", "fedcda", "metafed", "silobn"}
    rows = [line for line in gallery().splitlines() if line.startswith("| [") and ") †<" in line]
    assert {row.split("]")[0].strip("| [") for row in rows} == marked
    before = gallery().split("## What they are")[0]
    assert "`metafed` had `rounds=300`" in before
    assert {name for name in marked if f"`{name}`" not in before} == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedavg", "AISTATS"),
        ("fml", ""),
        ("fedgh", "ACM MM"),
        ("fedptr", "arXiv"),
        ("fedkd", "Nature Communications"),
    ],
)
def test_the_venue_is_the_citations(name: str, expected: str) -> None:
    assert venue(find("algorithm", name)) == expected
    assert tables()[0][name]["venue"] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fedavg", ""), ("fednh", "`local.grad_clip=10`"), ("metafed", "`clients.per_round=1`")],
)
def test_a_presets_own_settings_of_the_experiment_are_named(name: str, expected: str) -> None:
    assert tables()[0][name]["sets besides its parts"] == expected


def test_fedavg_sends_weights_and_keeps_nothing() -> None:
    row = needs("fedavg")
    assert row["what travels"] == "weights"
    assert row["a client keeps"] == row["the server keeps"] == "none"
    assert {row[each] for each in REFUSERS} == {"yes"}
    assert (row["bytes / FedAvg"], row["seconds / FedAvg"]) == ("1.00", "1.0")


def test_scaffold_exchanges_and_keeps_control_variates() -> None:
    row = needs("scaffold")
    part = "[control_variates](/options/regularizer/control_variates.md)"
    assert row["what travels"] == f"weights<br>{part}: variate ↓↑"
    assert (row["a client keeps"], row["the server keeps"]) == (f"{part}: variate", f"{part}: mean")
    assert 1.9 < float(row["bytes / FedAvg"]) < 2


@pytest.mark.parametrize("name", ["fedproto", "local", "fedmd", "fedgh"])
def test_methods_without_shared_weights_send_none(name: str) -> None:
    assert needs(name)["what travels"].startswith("no weights")


def test_a_private_head_stays_at_the_client() -> None:
    row = needs("fedrep")
    assert row["what travels"] == "backbone"
    assert row["a client keeps"] == "private weights: head"


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("hics", "private", "only for uniformly drawn cohorts"),
        ("fedproto", "private", "PrototypeAlign"),
        ("fedgela_released", "private", "has buffers"),  # found when the model is built
        ("fedbn", "stacked", "is BatchNorm"),
        ("fedkd", "Flower", "compression"),
    ],
)
def test_a_refusal_has_the_message_of_a_run(name: str, column: str, says: str) -> None:
    cell = needs(name)[column]
    assert cell.endswith("no</abbr>")
    assert says in cell


def test_an_aggregator_that_a_private_mean_replaces_is_named() -> None:
    assert needs("fedavgm")["private"] == "replaces its own"
    assert needs("moon")["private"] == "yes"


def test_costs_on_another_task_are_not_compared() -> None:
    row = needs("fedbn")
    assert row["kB a round"]
    assert row["bytes / FedAvg"] == row["seconds / FedAvg"] == ""


@pytest.mark.parametrize("name", ["scaffold", "hics"])
def test_the_stored_facts_are_those_of_a_run(name: str) -> None:
    assert observe(name) == vars(observed(name))
