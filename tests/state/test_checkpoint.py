"""Checkpoints: their content, damaged ones, and a full disk."""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import FEW_STEPS, MATCHING, federate, timeless
from support.full_disk import files_up_to
from support.partner_options import ROBUST_COHORTS
from support.refusals import refused
from support.short_runs import saved_round
from torch import Tensor, nn

from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.measures.best import Best
from fedexp.runtime.federation import Federation
from fedexp.state.checkpoint import verified
from fedexp.state.checkpoints import Checkpoints
from fedexp.state.files import digest as content_digest
from fedexp.tracking.summary import digest

SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=200", "rounds=4"]
PLAIN = ["optimizer.momentum=0", "optimizer.weight_decay=0"]
CROSS_ROUND = ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.memory=2"]
WITH_STATE = [
    f"{group}={path.stem}"
    for group in ("algorithm", "head", "loss", "regularizer", "sampler", "aggregator")
    for path in sorted((Path(config_folder()) / group).glob("*.yaml"))
]


class Dropping(nn.Module):
    """A backbone that draws from the layers' own generator."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, 16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(
            self.norm(self.linear(x.flatten(1))).relu(), 0.5, self.training
        )


def dropping(input_shape: tuple[int, ...]) -> nn.Module:
    return Dropping(torch.Size(input_shape).numel())


DROPPING = [
    f"model._target_={__name__}.dropping",
    *(f"~model.{key}" for key in ("hidden", "feature_dim", "rectify", "batch_norm")),
]

BATCH_NORM = ["model.batch_norm=true", "local.batch_size=1000"]
NEEDS = {f"algorithm={name}": BATCH_NORM for name in ("fedap", "fedbn", "silobn")}
NEEDS |= {"regularizer=multitask": ["personalization=local"]}
NEEDS |= {"loss=inherited": ["personalization=fedphp"]}
NEEDS |= {"loss=mixture": ["head=mixture"], "sampler=oort": ["system=uniform"], **ROBUST_COHORTS}
NEEDS |= {
    f"loss={each}": ["personalization=second_model"] for each in ("mutual", "adaptive_mutual")
}


def save(folder: Path, federation: Federation, round: int, keep: int = 2) -> None:
    """A checkpoint of this state, as if the run had written a line a round."""
    lines = "".join(json.dumps({"round": each}) + "\n" for each in range(1, round + 1))
    server, measures = federation.server, federation.measures
    states, coordination = federation.store.states(), federation.coordination
    checkpoints = Checkpoints(folder, keep, b'{"config": {}, "wandb_id": "0"}')
    checkpoints.save(round, 10.0 * round, server, measures, coordination, states, lines.encode())


def restored(folder: Path, *overrides: str) -> tuple[Federation, int]:
    """A federation that goes on from the newest checkpoint, and the round of that."""
    federation = federate(*overrides)
    found = Checkpoints(folder, 2).latest()
    assert found is not None
    federation.restore(found)
    return federation, found.round


def numbers(federation: Federation, round: int) -> dict[str, float]:
    """One round's metrics but for the time they took."""
    return timeless(federation.run_round(round).metrics)


def state(federation: Federation) -> str:
    store = federation.store
    states = {
        f"{client}/{name}/{key}": tensor
        for client, state in store.states()
        for name, group in {
            **state.memories,
            "": state.private,
            "model": state.personal_model,
        }.items()
        for key, tensor in group.items()
    }
    return digest(federation.server.weights | states)


def check_resume_to_the_same_bits(folder: Path, *overrides: str) -> None:
    whole = federate(*overrides)
    for round in (1, 2):
        whole.run_round(round)
    save(folder, whole, 2)
    expected = [numbers(whole, round) for round in (3, 4)]
    resumed, round = restored(folder, *overrides)
    assert round == 2
    assert [numbers(resumed, round) for round in (3, 4)] == expected
    assert state(resumed) == state(whole)


@pytest.mark.matrix
@pytest.mark.parametrize("override", WITH_STATE)
def test_every_part_resumes_to_the_same_bits(override: str, tmp_path: Path) -> None:
    plain = PLAIN if "control" in override or "scaffold" in override else []
    few = FEW_STEPS if override in MATCHING else []
    needs = NEEDS.get(override, [])
    check_resume_to_the_same_bits(tmp_path, *SMALL, *plain, override, *few, *needs)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides",
    [
        ["sampler=divfl", "sampler.signal=last_update"],
        ["sampler=hics", "sampler.signal=virtual_bias"],
        ["head=etf", "head.feature_norm=batchnorm"],
        ["loss=rpcl_cpdr", "loss.normalizer=dataset"],
        ["algorithm=fedptr", "regularizer.lag=2", "regularizer.update_every=1", *FEW_STEPS],
        ["measure.personal.of=cohort", "measure.personal.every=1"],
        ["measure.personal=null"],
        ["algorithm=feddyn", "clients.ram_gib=0.0001"],
        ["+measure=step_cosine", *DROPPING],
        ["local.keep_optimizer=true", "optimizer=adam", "clients.ram_gib=0.0001"],
        ["algorithm=fedproto", "personalization.score_with=received"],
        [*CROSS_ROUND],
        [*CROSS_ROUND, "clients.ram_gib=0.0001"],
    ],
    ids=" ".join,
)
def test_other_options_resume_to_the_same_bits(overrides: list[str], tmp_path: Path) -> None:
    check_resume_to_the_same_bits(tmp_path, *SMALL, *overrides)


def test_the_best_model_of_earlier_rounds_is_restored(tmp_path: Path) -> None:
    """Round 3 starts from zeros, so that the best model is in the checkpoint of round 2."""
    overrides = [*SMALL, "personalization=finetune_best", "personalization.epochs=1"]
    whole = federate(*overrides)
    for round in (1, 2):
        whole.run_round(round)
    save(tmp_path, whole, 2)
    resumed, _ = restored(tmp_path, *overrides)
    ends = []
    for federation in (whole, resumed):
        weights = federation.server.weights
        federation.server.weights = {name: torch.zeros_like(w) for name, w in weights.items()}
        ends.append([numbers(federation, round) for round in (3, 4)])
        best = federation.measures["best"]
        assert isinstance(best, Best)
        assert best.message is not None
        assert best.message.round <= 2
    assert ends[0] == ends[1]
    assert "personal/accuracy_test_split_untuned" in ends[0][1]


def test_a_checkpoint_is_read_without_running_anything_from_it(tmp_path: Path) -> None:
    federation = federate(*SMALL, *PLAIN, "algorithm=scaffold")
    federation.run_round(1)
    save(tmp_path, federation, 1)
    folder = tmp_path / "checkpoints" / "round_0001"
    found = torch.load(folder / "server.pt", weights_only=True)
    assert digest(found["weights"]) == digest(federation.server.weights)
    clients = sorted(folder.glob("clients/*.pt"))
    assert [int(path.stem) for path in clients] == federation.store.clients_with_model
    state = torch.load(clients[0], weights_only=True)
    assert set(state) == {"memories", "private", "separate_model", "personal_model"}
    assert "regularizer" in state["memories"]


def reshaped(state: dict[str, Any]) -> dict[str, Any]:
    name = next(iter(state["weights"]))
    return {**state, "weights": {**state["weights"], name: torch.ones(2)}}


def of_nan(state: dict[str, Any]) -> dict[str, Any]:
    wrong = {name: torch.full_like(each, torch.nan) for name, each in state["weights"].items()}
    return {**state, "weights": wrong}


UNFIT: list[tuple[str, Callable[[Any], Any], str]] = [
    ("server.pt", reshaped, "does not fit this run (ValueError: .* is [2] in the file, ["),
    ("server.pt", of_nan, "backbone.* holds NaN or Inf"),
    ("server.pt", lambda state: [state], "does not fit this run (TypeError: "),
    ("server.pt", lambda state: {}, "does not fit this run (KeyError: 'weights')"),
    ("server.pt", lambda state: {"code": Path}, "cannot be read (it is damaged, or holds other"),
    ("clients/0.pt", lambda state: [state], "should hold a client's state: memories, pers"),
    ("clients/0.pt", lambda state: {**state, "more": 1}, "should hold a client's state: "),
    ("clients/0.pt", lambda state: {**state, "memories": [1]}, "should hold a client's state: "),
]


def test_files_that_fit_their_digests_but_not_the_run_are_one_line(tmp_path: Path) -> None:
    options = [*SMALL, *PLAIN, "algorithm=scaffold", "clients.per_round=5"]
    federation = federate(*options)
    federation.run_round(1)
    save(tmp_path, federation, 1)
    checkpoint = tmp_path / "checkpoints" / "round_0001"
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    for name, change, said in UNFIT:
        path = checkpoint / name
        before = path.read_bytes()
        torch.save(change(torch.load(path)), path)
        files = manifest["files"] | {name: content_digest(path.read_bytes())}
        (checkpoint / "checkpoint.json").write_text(json.dumps({**manifest, "files": files}))
        pattern = re.escape(f"{path}: {said}").replace(r"\.\*", ".*")
        with refused(f"^{pattern}"):
            restored(tmp_path, *options)
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["../../mine", "clients/../../x", "/etc/hostname"])
def test_a_checkpoint_reads_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints" / "round_0001"
    folder.mkdir(parents=True)
    listed = {"round": 1, "seconds": 1.0, "files": {name: "0"}}
    (folder / "checkpoint.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=f"^{name} is outside the checkpoint$"):
        verified(folder)


def fixed(folder: Path) -> dict[str, int]:
    """The files of a checkpoint that never change, and what they are on the disk."""
    return {path.name: path.stat().st_ino for path in folder.glob("fixed/aggregator/*.pt")}


@pytest.mark.parametrize("has_links", [True, False])
def test_what_never_changes_is_written_once(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no hard links here")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    federation = federate(*SMALL, *CROSS_ROUND, "clients.per_round=5")
    first, second = (tmp_path / "checkpoints" / f"round_000{round}" for round in (1, 2))
    for round in (1, 2):
        federation.run_round(round)
        save(tmp_path, federation, round)
    before, after = fixed(first), fixed(second)
    assert len(before) == 5
    assert len(after) == 10
    assert all((after[name] == file) == has_links for name, file in before.items())
    federation.run_round(3)
    save(tmp_path, federation, 3)  # forgets the models of round 1, and then its checkpoint
    names = set(fixed(tmp_path / "checkpoints" / "round_0003"))
    assert names == {f"client_{client}_round_{r}.pt" for client in range(5) for r in (2, 3)}
    left = {path.name for path in tmp_path.rglob("client_*.pt")}
    assert left == {f"client_{client}_round_{r}.pt" for client in range(5) for r in (1, 2, 3)}
    save(tmp_path, federation, 4)
    assert {path.name for path in tmp_path.rglob("client_*.pt")} == names
    assert saved_round(tmp_path) == 4


def test_damage_to_what_checkpoints_share_is_found(tmp_path: Path) -> None:
    federation = federate(*SMALL, *CROSS_ROUND)
    federation.run_round(1)
    save(tmp_path, federation, 1)
    flip(min(tmp_path.rglob("fixed/aggregator/*.pt")))
    assert Checkpoints(tmp_path, 2).latest() is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    federation = federate(*SMALL)
    for round in (2, 4, 10_000):
        save(tmp_path, federation, round)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["round_0004", "round_10000"]
    found = Checkpoints(tmp_path, 2).latest()
    assert found is not None
    assert (found.round, found.seconds) == (10_000, 100_000.0)
    assert len(found.metrics.splitlines()) == 10_000
    assert found.identity is not None
    assert found.identity.wandb_id == "0"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the weights": lambda folder: flip(folder / "server.pt"),
    "a bit of a client": lambda folder: flip(min(folder.glob("clients/*.pt"))),
    "half of the weights": lambda folder: (folder / "server.pt").write_bytes(b"PK"),
    "no metrics": lambda folder: (folder / "metrics.jsonl").unlink(),
    "a client is gone": lambda folder: min(folder.glob("clients/*.pt")).unlink(),
    "empty manifest": lambda folder: (folder / "checkpoint.json").write_bytes(b""),
    "another manifest": lambda folder: (folder / "checkpoint.json").write_text("[1]"),
    "no manifest": lambda folder: (folder / "checkpoint.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_and_set_aside(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*SMALL)
    for round in (1, 2):
        federation.run_round(round)
        save(tmp_path, federation, round)
    newest = tmp_path / "checkpoints" / "round_0002"
    DAMAGE[damage](newest)
    with caplog.at_level(logging.WARNING):
        assert saved_round(tmp_path) == 1
    assert f"{newest} is damaged" in caplog.text
    assert not newest.exists()  # or it would count as one of the newest two
    aside = newest.with_name("round_0002.damaged")
    assert aside.is_dir()
    assert f"now named {aside.name}" in caplog.text
    save(tmp_path, federation, 2)
    DAMAGE[damage](newest)
    assert saved_round(tmp_path) == 1
    assert aside.is_dir()
    assert newest.with_name("round_0002.damaged1").is_dir()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO, errno.ENXIO])
@pytest.mark.parametrize("name", ["checkpoint.json", "server.pt", "round_0002"])
def test_what_cannot_be_read_is_not_touched(
    number: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be away for a time only: an intact checkpoint must outlast that."""
    federation = federate(*SMALL)
    for round in (1, 2):
        save(tmp_path, federation, round)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if name in path.parts:
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(InputError, match=rf"cannot be read \({os.strerror(number)}\)") as error:
            Checkpoints(tmp_path, 2).latest()
    assert "nothing was deleted" in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert saved_round(tmp_path) == 2


def test_foreign_files_beside_and_in_checkpoints_are_ignored(tmp_path: Path) -> None:
    overrides = [*SMALL, *CROSS_ROUND]
    federation = federate(*overrides)
    federation.run_round(1)
    save(tmp_path, federation, 1)
    checkpoints, newest = tmp_path / "checkpoints", tmp_path / "checkpoints" / "round_0001"
    shutil.copytree(newest, checkpoints / "round_0001 (copy)")
    shutil.copytree(newest, checkpoints / "round_x")
    for folder in (checkpoints, newest, *(path for path in newest.rglob("*") if path.is_dir())):
        (folder / ".DS_Store").write_bytes(b"Bud1")
        (folder / "notes.pt").write_text("mine")
    (checkpoints / "round_0009").mkdir()  # empty: damaged
    (checkpoints / "thesis.tmp").mkdir()
    resumed, round = restored(tmp_path, *overrides)
    assert round == 1
    assert numbers(resumed, 2) == numbers(federation, 2)
    save(tmp_path, resumed, 2, keep=1)
    left = {path.name for path in checkpoints.iterdir()}
    assert left == {
        *("round_0002", "round_0009.damaged", "round_0001 (copy)", "round_x"),
        *("thesis.tmp", "notes.pt", ".DS_Store"),
    }


def test_old_checkpoints_that_cannot_be_deleted_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*SMALL)
    save(tmp_path, federation, 1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        save(tmp_path, federation, 2, keep=1)
    assert "old checkpoints cannot be deleted" in caplog.text
    assert saved_round(tmp_path) == 2


def test_there_may_be_no_complete_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, 2).latest() is None
    save(tmp_path, federate(*SMALL), 1)
    flip(tmp_path / "checkpoints" / "round_0001" / "server.pt")
    assert Checkpoints(tmp_path, 2).latest() is None


def test_an_unfinished_checkpoint_is_ignored_and_deleted(tmp_path: Path) -> None:
    federation = federate(*SMALL)
    save(tmp_path, federation, 1)
    unfinished = tmp_path / "checkpoints" / "round_0002.tmp"
    (unfinished / "clients").mkdir(parents=True)
    (unfinished / "server.pt").write_bytes(b"PK")
    assert saved_round(tmp_path) == 1
    assert not unfinished.exists()


def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    federation = federate(*SMALL)
    federation.run_round(1)
    save(tmp_path, federation, 1)
    federation.run_round(2)
    before = tmp_path / "checkpoints" / "round_0001"
    enough_for_metrics = (before / "server.pt").stat().st_size // 2
    with (
        files_up_to(enough_for_metrics),
        refused(rf"round_0002 cannot be written .*{before} is complete"),
    ):
        save(tmp_path, federation, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["round_0001"]
    assert restored(tmp_path, *SMALL)[1] == 1
