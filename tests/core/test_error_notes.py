"""An exception in a part's code gets a note with the part, the client and the round."""

import re
from typing import Any

import pytest
from support.federations import federate

from fedexp.core.error_notes import noted
from fedexp.runtime.federation import Federation

SMALL = ("clients.count=4", "clients.per_round=2", "data.subset=120", "local.epochs=1")
SMALL += ("sampler=power_of_choice", "measure.personal.of=all", "personalization=finetune")
ENGINES: dict[str, list[str]] = {
    "serial": [],
    "vectorized": ["engine=vectorized"],
    "buffered": ["sampler=random", "coordination=buffered", "coordination.buffer=2"],
}
ENGINES["buffered"] += ["system=phones", "aggregator=uniform"]


@pytest.fixture(scope="module", params=ENGINES)
def federation(request: pytest.FixtureRequest) -> Federation:
    return federate(*SMALL, *ENGINES[request.param])


def fails(self: object, *arguments: Any, **named: Any) -> None:
    raise IndexError


@pytest.mark.parametrize(
    ("socket", "hook", "doing"),
    [
        ("loss", "forward", r"(training|trying a step of) clients? [\d\[].* in round 1"),
        ("loss", "begin", r"(training|trying a step of|beginning with) client \d in round 1"),
        ("head", "report", r"(training|finishing the turn of) client \d in round 1"),
        ("sampler", "select", "running round 1"),
        ("aggregator", "merge", "running round 1"),
        ("measure.cost", "__call__", "measuring after round 1"),
    ],
)
def test_a_note_names_the_part(
    socket: str, hook: str, doing: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {**federation.engine.resources.components, **federation.measures.components}
    monkeypatch.setattr(type(parts[socket]), hook, fails)
    with pytest.raises(IndexError) as error:
        federation.run_round(1)
    (note,) = error.value.__notes__
    assert re.fullmatch(rf"while {doing}, in {socket} \(fedexp\.[\w.]+\)", note), note


def test_the_innermost_block_makes_the_note() -> None:
    with pytest.raises(IndexError) as error, noted("outer", {}), noted("inner", {}):
        fails(None)
    assert error.value.__notes__ == ["while inner"]
