"""A run is trained again: its own folder verifies, and each tampered copy is named."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.short_runs import SHORT
from support.verified import edit_json, edit_rounds, forget_digests, ways

import fedexp
from fedexp.verification import run as module
from fedexp.verification.again import config_here
from fedexp.verification.claims import contradictions, read_claim
from fedexp.verification.run import verify_run
from fedexp.verification.verdict import Outcome, Verdict

TINY = ["rounds=2", "clients.count=4", "clients.per_round=4", "local.epochs=1", "data.subset=120"]
TINY += ["tracking.wandb.mode=disabled", "tracking.progress=false", "checkpoint.keep=0"]
TINY += [f"measure.{name}=null" for name in ("angles", "partition", "prototypes", "personal")]
SYSTEMS: dict[str, list[str]] = {
    **{name: [] for name in ("fednh", "fedsc", "fedgela", "hics")},
    "fedptr": ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"],
}
"""Preset -> overrides that shorten its work."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fedexp.run([*SHORT, f"hydra.run.dir={folder}"])
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_run_verifies_to_the_bit(copy: Path, tmp_path: Path) -> None:
    found = verify_run(copy, ways(), tmp_path / "again")
    assert found == Verdict(str(copy), Outcome.SAME, "the same bits through round 2 of 4", [])
    again = (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in again] == [1, 2]
    assert verify_run(copy, ways(99)).line == "the same bits through round 4 of 4"


def test_bytes_of_0_that_an_earlier_version_wrote_are_no_contradiction(copy: Path) -> None:
    edit_json(copy / "summary.json", lambda found: found["total"].update({"cost/left_bytes": 0}))
    assert list(contradictions(read_claim(copy))) == []
    edit_json(copy / "summary.json", lambda found: found["total"].update({"cost/left_bytes": 1}))
    (line,) = contradictions(read_claim(copy))
    assert line.startswith("summary.json: total cost/left_bytes is 1, but the other records give 0")


def test_a_run_on_the_cpu_is_trained_on_the_cpu_where_there_is_a_gpu(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert verify_run(copy, ways(1)).line == "the same bits through round 1 of 4"
    config = read_claim(copy).run.config
    on_gpu = config_here(config, {"device": "NVIDIA H200"}, "cache", {})
    assert (on_gpu.engine.device, config["engine"]["device"]) == ("auto", "auto")


@pytest.mark.parametrize("algorithm", SYSTEMS)
def test_the_systems_verify(algorithm: str, tmp_path: Path) -> None:
    words = [f"algorithm={algorithm}", *SYSTEMS[algorithm]]
    fedexp.run([*words, *TINY, f"hydra.run.dir={tmp_path / 'run'}"])
    found = verify_run(tmp_path / "run", ways(1))
    assert (found.line, found.details) == ("the same bits through round 1 of 2", [])


@pytest.mark.parametrize(
    "words",
    [["algorithm=fedrod", "objective=global/accuracy"], ["model.train=[head]"]],
    ids=["fedrod", "fixed"],
)
def test_saved_tensors_outside_of_the_digest_are_no_contradiction(
    words: list[str], tmp_path: Path
) -> None:
    """A personalization's parameters are global weights; fixed weights are saved, but are none."""
    fedexp.run([*words, *TINY, "rounds=1", f"hydra.run.dir={tmp_path / 'run'}"])
    assert list(contradictions(read_claim(tmp_path / "run"))) == []
    swapped_digest(tmp_path / "run")
    assert len(list(contradictions(read_claim(tmp_path / "run")))) == 1


def test_fixed_weights_the_best_model_and_the_facts_about_the_data_are_compared(
    tmp_path: Path,
) -> None:
    """None of them is in the digest of the weights, but all decide what the saved model says."""
    run = tmp_path / "run"
    words = ["algorithm=fedavg", "model.train=[head]", "data.validation=0.2", *TINY, "rounds=1"]
    fedexp.run([*words, f"hydra.run.dir={run}"])
    assert verify_run(run, ways(1)).outcome == Outcome.SAME
    for name in ("final", "best"):
        path = run / "checkpoints" / f"{name}.pt"
        weights = torch.load(path, weights_only=True)
        fixed = next(each for each in weights if each.startswith("backbone."))
        torch.save({**weights, fixed: -weights[fixed]}, path)
    edit_json(run / "data.json", lambda found: found["description"]["classes"].reverse())
    edit_json(run / "summary.json", lambda found: found.pop("records"))
    found = verify_run(run, ways(1))
    assert found.outcome == Outcome.DIFFERS
    assert found.line.startswith("data.json: description.classes is ['9', '8', ")
    assert found.details == [
        f"checkpoints/{name}.pt: differs from the model that was trained again"
        for name in ("best", "final")
    ]


def set_loss(folder: Path, round: int, factor: float) -> None:
    def change(rounds: list[dict[str, Any]]) -> None:
        rounds[round - 1]["train/loss"] *= factor

    edit_rounds(folder, change)


def another_seed(folder: Path) -> None:
    edit_json(folder / "run.json", lambda found: found["config"].update(seed=1))


def another_partition(folder: Path) -> None:
    path = folder / "partition.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[:0:-1]]))


def another_accuracy(folder: Path) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["metrics"]["global/accuracy"]["best"] = 0.999

    edit_json(folder / "summary.json", change)


def another_lr(folder: Path) -> None:
    edit_json(folder / "run.json", lambda found: found["config"]["optimizer"].update(lr=0.7))


def swapped_digest(folder: Path) -> None:
    edit_json(folder / "summary.json", lambda found: found.update(weights_digest="0" * 64))


def swapped_data_digests(folder: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        data = found["starts"][0]["data"]
        data["train"], data["test"] = data["test"], data["train"]

    edit_json(folder / "origin.json", change)


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a digit of a loss": (
        lambda folder: set_loss(folder, 1, 1.00001),
        r"round 1: train/loss is [\d.]+, again it is [\d.]+; they differ by",
    ),
    "a late round": (
        lambda folder: set_loss(folder, 4, 1.00001),
        "metrics.jsonl: has changed since the run ended",
    ),
    "another seed": (another_seed, "summary.json: seed is 0, but the other records give 1"),
    "another learning rate": (another_lr, "config_hash is .* but the other records give"),
    "another partition": (another_partition, "partition.csv: differs from the partition of"),
    "a better accuracy": (another_accuracy, "metrics global/accuracy best is 0.999"),
    "a swapped digest": (swapped_digest, "weights_digest is not the digest of checkpoints/final"),
    "swapped digests of data": (swapped_data_digests, "data: train differs"),
    "a missing round": (
        lambda folder: edit_rounds(folder, lambda rounds: rounds.pop(1)),
        "metrics.jsonl: round 2 is missing",
    ),
    "a round more": (
        lambda folder: edit_rounds(folder, lambda rounds: rounds.append({**rounds[3], "round": 5})),
        "summary.json: rounds is 4, but the other records give 5",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_changed_is_named(name: str, copy: Path) -> None:
    change, line = TAMPERED[name]
    change(copy)
    found = verify_run(copy, ways(1))
    assert found.outcome == Outcome.DIFFERS
    assert any(re.search(line, each) for each in [found.line, *found.details]), found


def test_without_the_digests_the_rounds_that_are_trained_again_tell(copy: Path) -> None:
    forget_digests(copy)
    set_loss(copy, 2, 1.5)
    assert verify_run(copy, ways(2)).line.startswith("its records disagree; differs in round 2: ")
    shutil.rmtree(copy / "checkpoints")
    swapped_digest(copy)
    assert any("weights_digest differs" in each for each in verify_run(copy, ways(9)).details)


def test_rounds_with_code_of_a_later_start_cannot_be_compared(copy: Path) -> None:
    """Otherwise rounds that were written by hand could hide behind a start that never was."""

    def a_later_start(found: dict[str, Any]) -> None:
        first = found["starts"][0]
        name = first["code"]["parts"]["loss"][0]
        code = {**first["code"], "files": {**first["code"]["files"], name: "0" * 64}}
        found["starts"].append({**first, "from_round": 3, "code": code})

    edit_json(copy / "origin.json", a_later_start)
    forget_digests(copy)
    assert verify_run(copy, ways(2)).outcome == Outcome.SAME
    found = verify_run(copy, ways(3))
    assert found.outcome == Outcome.UNKNOWN
    assert found.line.startswith("the same bits through round 2 of 4; later rounds had other code")
    assert found.details[0].startswith("since round 3 with changed code: ")


def test_a_run_that_went_on_with_more_rounds_is_compared_up_to_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for words in (["rounds=2", f"hydra.run.dir={folder}"], ["rounds=3", f"resume={folder}"]):
        fedexp.run([*(each for each in SHORT if not each.startswith("rounds=")), *words])
    assert verify_run(folder, ways(2)).line == "the same bits through round 2 of 3"
    found = verify_run(folder, ways(3))
    assert found.outcome == Outcome.UNKNOWN
    assert "round 2 of 3; later rounds had other code, another precision or another" in found.line


def a_start_from_round_2(folder: Path, **environment: object) -> None:
    def add(found: dict[str, Any]) -> None:
        first = found["starts"][0]
        later = {**first["environment"], **environment}
        found["starts"].append({**first, "from_round": 2, "environment": later})

    edit_json(folder / "origin.json", add)
    forget_digests(folder)


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [("threads", 3, "on another kind of machine"), ("processes", 2, "for such runs")],
)
def test_rounds_of_a_start_on_another_machine_have_a_tolerance(
    key: str, value: int, where: str, copy: Path
) -> None:
    a_start_from_round_2(copy, **{key: value})
    edit_json(copy / "summary.json", lambda found: found.pop("metrics"))
    set_loss(copy, 2, 1.001)
    assert verify_run(copy, ways(1)).line == "the same bits through round 1 of 4"
    found = verify_run(copy, ways(2))
    assert (found.outcome, found.details[1:]) == (
        Outcome.SAME,
        [f"since round 2: environment: {key} {value}"],
    )
    assert f"which is the tolerance {where}" in found.line


def test_a_run_that_went_on_with_another_engine_has_a_tolerance(copy: Path) -> None:
    a_start_from_round_2(copy)

    def had_stacks(found: dict[str, Any]) -> None:
        found["starts"][0]["code"]["parts"]["engine"] = ["fedexp/engines/vectorized.py"]

    edit_json(copy / "origin.json", had_stacks)
    assert_tolerance(copy, 1, "another engine")


def test_a_run_that_went_on_with_another_key_of_its_engine_has_a_tolerance(copy: Path) -> None:
    a_start_from_round_2(copy, channels_last=True)
    assert_tolerance(copy, 2, "environment: channels_last True")


def assert_tolerance(folder: Path, round: int, changed: str) -> None:
    """Another loss in this round is within the tolerance; the start of round 2 is named."""
    edit_json(folder / "summary.json", lambda found: found.pop("metrics"))
    set_loss(folder, round, 1.001)
    found = verify_run(folder, ways(round))
    assert (found.outcome, found.details[1:]) == (Outcome.SAME, [f"since round 2: {changed}"])


def test_rounds_with_another_precision_cannot_be_compared(copy: Path) -> None:
    a_start_from_round_2(copy, precision="bf16-mixed")
    found = verify_run(copy, ways(2))
    assert found.outcome == Outcome.UNKNOWN
    assert found.details == ["since round 2: environment: precision bf16-mixed"]


def test_another_number_of_rounds_does_not_hide_the_weights(copy: Path) -> None:
    edit_json(copy / "origin.json", lambda found: found["starts"][0].update(rounds=5))
    found = verify_run(copy, ways(9))
    assert found.outcome == Outcome.DIFFERS
    assert "origin.json: the last start had another rounds than run.json" in found.details


def test_on_another_kind_of_machine_a_tolerance_holds(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(found: dict[str, Any]) -> None:
        found["starts"][0]["environment"]["processor"] = "AnotherMaker AVX2"

    edit_json(copy / "origin.json", elsewhere)
    forget_digests(copy)
    edit_json(copy / "summary.json", lambda found: found.pop("metrics"))
    set_loss(copy, 2, 1.001)
    found = verify_run(copy, ways(2))
    assert found.outcome == Outcome.SAME, found
    assert "which is the tolerance on another kind of machine" in found.line
    assert "round 2: train/loss" in found.details[0]
    assert found.details[1].startswith("environment: processor AnotherMaker AVX2; here ")
    set_loss(copy, 2, 1.1)
    assert verify_run(copy, ways(2)).outcome == Outcome.DIFFERS
    monkeypatch.setattr(module, "TOLERANCE", 0.2)
    assert verify_run(copy, ways(2)).outcome == Outcome.SAME
