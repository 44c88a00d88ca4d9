"""Nodes that come and go, replies that do not fit, and a server that is killed."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from support.fake_grid import DIGITS, FakeGrid, bundle, changed, run
from torch import Tensor

import fedexp
from fedexp.core.messages import Tensors
from fedexp.deployment.flower import nodes
from fedexp.deployment.flower.letters import Turn
from fedexp.deployment.flower.nodes import Patience
from fedexp.deployment.flower.post import Post
from fedexp.deployment.flower.record import read_record
from fedexp.errors import InputError
from fedexp.faults.base import Faults

WORDS = ["algorithm=scaffold", "rounds=4", "measure.personal=null"]
LOST = (2, 1)
"""The round and the client of an update that does not count."""


@pytest.fixture
def grid(tmp_path: Path) -> FakeGrid:
    """A grid whose cohorts are all four clients."""
    return FakeGrid(bundle(tmp_path, *WORDS, "clients.per_round=4"), tmp_path / "states")


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a simulated run in which the lost client drops out of that round."""
    words = [*DIGITS, *WORDS, "clients.per_round=4", f"hydra.run.dir={tmp_path}/simulated"]
    with monkeypatch.context() as patched:
        patched.setattr(Faults, "drops_out", lambda self, round, client: (round, client) == LOST)
        digest: str = fedexp.run(words).summary["weights_digest"]
    return digest


def is_lost(kind: str, round: int, client: int) -> bool:
    return kind == "train" and (round, client) == LOST


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("lose", "sent no reply in time; it counts as dropped out"),
        ("absent", "failed with code 5 (the node is not available)"),
    ],
)
def test_a_client_without_a_reply_drops_out_and_takes_part_in_the_next_round(
    fault: str,
    line: str,
    grid: FakeGrid,
    dropped: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If only the reply was lost, the node trained, but goes on from its state before."""
    setattr(grid, fault, is_lost)
    assert run(grid, tmp_path / "runs").summary["weights_digest"] == dropped
    assert f"round 2: client 1 (node 101) {line}" in caplog.text
    (record,) = (tmp_path / "runs").glob("*/*/federation.json")
    assert read_record(record.parent).lost == [2]


def test_a_round_that_is_repeated_without_a_loss_is_no_longer_lost() -> None:
    post, patience = cast(Post, None), Patience(1, 1.0, 1.0)
    found, saved = nodes.Nodes(post, "", "", patience, {}, [2, 3]), []
    found.save_lost = lambda: saved.append(sorted(found.lost))
    for round in (2, 2, 3, 4):
        found.begin_round(round)
    assert saved == [[3], []]


@pytest.mark.slow
def test_a_restarted_node_has_another_number(
    grid: FakeGrid, dropped: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid.absent = is_lost
    before = grid.get_node_ids

    def node_ids() -> Iterable[int]:
        if grid.log.count(("train", 1)) == 2:  # gone in round 2
            grid.nodes.pop(101, None)
            grid.nodes[777] = 1
        return before()

    grid.get_node_ids = node_ids  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        assert run(grid, tmp_path / "runs").summary["weights_digest"] == dropped
    assert "client 1 is on node 777" in caplog.text


def _first(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    """A function that changes the first of the tensors."""

    def changed_first(tensors: Tensors) -> Tensors:
        name = next(iter(tensors))
        return tensors | {name: change(tensors[name])}

    return changed_first


def _reshaped(reply: RecordDict) -> RecordDict:
    return changed(reply, Turn, weights=_first(lambda value: value[:1]))


def _nan(reply: RecordDict) -> RecordDict:
    return changed(reply, Turn, weights=_first(lambda value: value * torch.nan))


def _stale(reply: RecordDict) -> RecordDict:
    head = dict(reply.config_records["head"])
    reply["head"] = ConfigRecord(head | {"app": "0123456789abcdef"})
    return reply


def _larger(reply: RecordDict) -> RecordDict:
    return changed(reply, Turn, num_samples=10**9)


def _pickled(reply: RecordDict) -> RecordDict:
    reply["content"] = ArrayRecord({"content": Array("uint8", (4,), "pickle", b"1234")})
    return reply


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_reshaped, "round 2: client 1 (node 101) sent the weight backbone."),
        (_nan, "round 2: the update of client 1 is not finite (backbone."),
        (_stale, "round 2: client 1 (node 101) is of app 0123456789abcdef, not "),
        (_larger, "round 2: client 1 (node 101) has 1000000000 training samples, but said "),
        (_pickled, "round 2: client 1 (node 101) sent no valid Turn (it is not in the format"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(
    spoil, line: str, grid: FakeGrid, dropped: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(kind: str, round: int, client: int, reply: RecordDict) -> RecordDict:
        if is_lost(kind, round, client):
            return spoil(reply)
        return reply

    grid.change = change
    assert run(grid, tmp_path / "runs").summary["weights_digest"] == dropped
    (found,) = [each.getMessage() for each in caplog.records if line in each.getMessage()]
    assert "\n" not in found


def test_a_node_refuses_another_app(
    grid: FakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    """The server's fedexp is newer: no node takes part, and the run ends in one line."""
    monkeypatch.setattr(nodes, "_LOOK_S", 0.01)
    path = grid.module / "app.json"
    other = tmp_path / "other"
    other.mkdir()
    (other / "app.json").write_text(path.read_text().replace('"seed": 3', '"seed": 4'))
    nodes_run, grid.module = grid.module, other
    grid.answering = nodes_run
    with pytest.raises(InputError, match=r"wait-minutes=0.001: the first round lacks clients 0, 1"):
        run(grid, tmp_path / "runs")
    assert "node 100 refused the request: is of app" in caplog.text


@pytest.mark.slow
def test_waits_for_a_node_that_comes_late(
    grid: FakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr(nodes, "_LOOK_S", 0.01)
    before, looks = grid.get_node_ids, []

    def node_ids() -> Iterable[int]:
        looks.append(1)
        return [node for node in before() if node != 103 or len(looks) > 5]

    grid.get_node_ids = node_ids  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        run(grid, tmp_path / "runs", **{"wait-minutes": 1.0})
    assert "the first round waits for client 3" in caplog.text


@pytest.mark.slow
def test_a_round_without_enough_nodes_ends_the_run_and_resume_goes_on(
    grid: FakeGrid, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(nodes, "_LOOK_S", 0.01)
    whole = run(grid, tmp_path / "whole").summary["weights_digest"]
    grid.log.clear()
    before = grid.get_node_ids
    grid.get_node_ids = lambda: [  # type: ignore[method-assign]
        node for node in before() if node != 102 or len(grid.log) < 10
    ]
    with pytest.raises(InputError, match=r"round 3 lacks client 2; start .* resume=true"):
        run(grid, tmp_path / "runs", **{"min-clients": 4})
    grid.get_node_ids = before  # type: ignore[method-assign]
    found = run(grid, tmp_path / "runs", resume=True, **{"min-clients": 4})
    assert found.summary["weights_digest"] == whole


def test_a_sampler_that_asks_waits_for_its_candidates(tmp_path: Path, monkeypatch) -> None:
    """Otherwise candidates without a node shrink the cohort."""
    monkeypatch.setattr(nodes, "_LOOK_S", 0.01)
    words = ["algorithm=fedavg", "sampler=power_of_choice", "sampler.candidates=4", "rounds=1"]
    grid = FakeGrid(bundle(tmp_path, *words, "aggregator=uniform"), tmp_path / "states")
    before = grid.get_node_ids
    grid.get_node_ids = lambda: [  # type: ignore[method-assign]
        node for node in before() if node != 102 or ("query.introduce", 2) not in grid.log
    ]
    with pytest.raises(InputError, match="the sampler's question in round 1 lacks client 2; start"):
        run(grid, tmp_path / "runs", **{"min-clients": 4})


@pytest.mark.parametrize("minutes", ["soon", True, 0, -1.0])
def test_a_wait_that_is_no_time_is_refused_in_one_line(
    grid: FakeGrid, tmp_path: Path, minutes: object
) -> None:
    with pytest.raises(InputError, match=f"^wait-minutes={minutes}: should be a number above 0"):
        run(grid, tmp_path / "runs", **{"wait-minutes": minutes})


def test_resume_says_that_there_is_no_unfinished_run(
    grid: FakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "runs"
    with pytest.raises(InputError, match=r"^wait-minutes=0"):
        run(grid, root, resume=True, **{"wait-minutes": 0})
    assert f"resume=true: found no unfinished run of this app in {root}" in caplog.text


class Killed(BaseException):
    """The server is killed at this moment."""


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_a_killed_server_goes_on_with_the_same_bits(every: int, tmp_path: Path) -> None:
    """Nodes whose states are newer than the checkpoint go back to it."""
    words = [*WORDS, "rounds=5", f"checkpoint.every={every}"]
    grid = FakeGrid(bundle(tmp_path, *words), tmp_path / "states")
    whole = run(grid, tmp_path / "whole").summary["weights_digest"]

    def kill(kind: str, round: int, client: int, reply: RecordDict) -> RecordDict:
        if kind == "train" and round == 5:
            raise Killed
        return reply

    grid.change = kill
    with pytest.raises(Killed):
        run(grid, tmp_path / "runs")
    grid.change = lambda kind, round, client, reply: reply
    grid.log.clear()
    found = run(grid, tmp_path / "runs", resume=True)
    assert found.summary["weights_digest"] == whole
    assert sum(kind == "train" for kind, _ in grid.log) == 3 * (1 if every == 1 else 2)
    assert len(list((tmp_path / "runs").glob("*/*"))) == 1


@pytest.mark.slow
def test_a_node_that_lost_its_disk_goes_on_and_says_so(
    grid: FakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def forget(kind: str, round: int, client: int) -> bool:
        if is_lost(kind, round, client):
            (path,) = (tmp_path / "states" / "node_1").glob("*/client_1/round_000001.pt")
            path.unlink()
        return False

    grid.absent = forget
    assert run(grid, tmp_path / "runs").summary["rounds"] == 4
    assert (
        "round 2: client 1 (node 101) lost its state and went on from an empty one" in caplog.text
    )
