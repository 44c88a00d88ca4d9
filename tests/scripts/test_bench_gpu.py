"""The one command for a GPU, on the CPU and on the pretended device, and a step that fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pretended_runs import NEEDS_COMPILER

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPTS / "bench_gpu.py"), "--to", str(folder), *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ)


def read(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_a_step_that_fails_ends_alone_and_the_command_goes_on(tmp_path: Path) -> None:
    given = ["--device", "cpu", "--tiny", "--images", str(tmp_path / "absent")]
    steps = ["rounds_small_serial", "check_deterministic"]
    first = command(tmp_path, *given, *steps)
    assert first.returncode == 1
    assert "rounds_small_serial: failed: " in first.stdout
    assert "data.root=" in first.stdout
    assert "check_deterministic: device cpu, ok True" in first.stdout
    written = (tmp_path / "check_deterministic.json").stat().st_mtime_ns
    second = command(tmp_path, "--device", "cpu", "--tiny", *steps)  # random images
    assert second.returncode == 0, second.stdout
    assert "check_deterministic: is there" in second.stdout
    assert (tmp_path / "check_deterministic.json").stat().st_mtime_ns == written
    assert len(read(tmp_path, "rounds_small_serial")["seconds"]) == 3  # type: ignore[arg-type]


def test_a_step_that_takes_too_long_is_stopped_and_keeps_what_it_has(tmp_path: Path) -> None:
    from bench_gpu import _run_step
    from benchmark.gpu.place import Place
    from benchmark.gpu.steps import Step

    arguments = type("Arguments", (), {"to": tmp_path, "device": "cpu", "images": None})()
    arguments.tiny = True
    Place(tmp_path, "cpu", True, None, 1.0).write("presets", {"agree": 1})
    why = _run_step(arguments, Step("presets", 150, "presets.compare"), 0.2)
    assert why == "stopped after 0 s; what it has found is in its file"
    assert read(tmp_path, "presets") == {"agree": 1}


def test_an_unfinished_comparison_goes_on_with_the_presets_that_it_lacks(tmp_path: Path) -> None:
    from benchmark.gpu import presets
    from benchmark.gpu.place import Place

    names = presets.names()[:3]
    found = {name: {"numbers": {}, "differs": {}} for name in names}
    place = Place(tmp_path, "cpu", True, None, 60)
    *_, last = presets.compare(place, {"presets": found})
    assert last == {"agree": 3, "of": 3, "presets": found}


def test_a_number_beyond_its_tolerance_or_missing_is_named() -> None:
    from benchmark.gpu.presets import differences

    expected = {"global/accuracy": 0.5, "train/loss": 2.0, "global/loss": 1.0}
    near = {"global/accuracy": 0.51, "train/loss": 2.005, "global/loss": 1.0}
    assert differences(near, expected) == {}
    assert differences({"global/accuracy": 0.53, "train/loss": 2.1}, expected) == {
        "global/accuracy": [0.53, 0.5],
        "train/loss": [2.1, 2.0],
        "global/loss": [None, 1.0],
    }


def test_every_preset_has_its_numbers_of_the_cpu() -> None:
    from benchmark import results
    from benchmark.gpu.presets import REFERENCE, names

    assert sorted(results.read(REFERENCE)) == names()


def test_a_wrong_step_is_one_line(tmp_path: Path) -> None:
    found = command(tmp_path, "presetz")
    assert found.returncode == 2
    assert "presetz: no such step; there are presets, rounds_small_hand-written" in found.stderr


@pytest.mark.slow
@NEEDS_COMPILER
def test_the_steps_on_the_pretended_device(tmp_path: Path) -> None:
    """One step of each kind; ResNet-18 takes minutes there, and nothing is compiled."""
    steps = ["presets", "rounds_small_hand-written", "rounds_small_serial"]
    steps += ["fednh_200_rounds", "check_resume", "check_deterministic", "check_bf16"]
    done = command(tmp_path, "--device", "pretended", "--tiny", "--minutes", "30", *steps)
    assert done.returncode == 0, done.stdout
    assert all(read(tmp_path, name)["done"] for name in steps)
    assert read(tmp_path, "presets")["agree"] == 3
    assert all(read(tmp_path, name)["ok"] for name in steps if name.startswith("check"))
    waits = [read(tmp_path, f"rounds_small_{each}")["waits"] for each in ("hand-written", "serial")]
    assert waits == [0, 3]  # of a round
