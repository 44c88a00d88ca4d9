"""The one command for a GPU: its steps, and what becomes of a step that does not finish."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pretended_runs import NEEDS_COMPILER

from fedexp.runtime import early

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


STEP = """
import sys, time
sys.path.insert(0, {scripts!r})
from pathlib import Path
from benchmark.gpu.result_file import read, write
name, folder = sys.argv[sys.argv.index("--run") + 1], Path(sys.argv[sys.argv.index("--to") + 1])
tried = read(folder, name).get("tried", 0) + 1
write(folder, name, {{"tried": tried}})
if name == "hangs" and tried == 1:
    time.sleep(60)
if name == "fails" and tried == 1:
    sys.exit("no such file")
write(folder, name, {{"tried": tried, "done": True}})
"""
"""A program in the place of a step's process; two steps do not finish at their first try."""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPTS / "bench_gpu.py"), "--to", str(folder), *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ)


def read(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_a_step_that_does_not_finish_ends_alone_and_the_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import bench_gpu
    from benchmark.gpu.steps import Step

    program, to = tmp_path / "step.py", tmp_path / "results"
    program.write_text(STEP.format(scripts=str(SCRIPTS)))
    seconds = {"fails": 60, "hangs": 1, "works": 60}
    steps = [Step(name, limit, "") for name, limit in seconds.items()]
    monkeypatch.setattr(bench_gpu, "STEPS", steps)
    monkeypatch.setattr(bench_gpu, "__file__", str(program))
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--to", str(to), "--device", "cpu"])

    def printed(code: int) -> list[str]:
        with pytest.raises(SystemExit) as end:
            bench_gpu.main()
        assert end.value.code == code
        return capsys.readouterr().out.splitlines()

    why = "stopped after 1 s; what it has found is in its file"
    assert printed(1) == ["fails: failed: no such file", f"hangs: {why}", "works: tried 1"]
    assert read(to, "fails") == {"tried": 1, "unfinished": "failed: no such file"}
    assert read(to, "hangs") == {"tried": 1, "unfinished": why}
    assert printed(0) == ["fails: tried 2", "hangs: tried 2", "works: is there"]
    assert printed(0) == ["fails: is there", "hangs: is there", "works: is there"]


def test_a_step_ends_when_the_command_is_killed() -> None:
    code = "import bench_gpu, time; bench_gpu._end_with_the_command(); time.sleep(60)"
    place = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    step = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True, env=place
    )
    assert step.stdin
    step.stdin.close()  # as the system does when the command has ended
    assert step.wait(30) == -signal.SIGKILL


def test_a_step_in_its_process_writes_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bench_gpu

    monkeypatch.setattr(bench_gpu, "_end_with_the_command", lambda: None)
    given = ["--to", str(tmp_path), "--device", "cpu", "--tiny", "--seconds", "60"]
    for name in ("check_deterministic", "cell_fednh"):
        monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--run", name, *given])
        bench_gpu.main()
    assert {"ok": True, "done": True, "device": "cpu"}.items() <= read(
        tmp_path, "check_deterministic"
    ).items()
    cell = read(tmp_path, "cell_fednh")
    assert cell["done"] is False
    assert str(cell["unfinished"]).startswith("needs --images")


def test_the_cells_are_valid() -> None:
    from benchmark import random_images
    from benchmark.gpu.cells import CELLS
    from benchmark.rounds import configure

    for words in CELLS.values():
        early.check(configure([*words, *random_images.OVERRIDES], always=[]))


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


def write_images(folder: Path) -> Path:
    """A folder like CIFAR-10's, with a few random images of each class."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 20)):
        for label in range(10):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


@pytest.mark.slow
def test_the_command_on_a_cpu(tmp_path: Path) -> None:
    """A step that fails, one that compiles, and the cells; the second call has the images."""
    cells = ["cell_fednh", "cell_hics", "cell_fedsc", "cell_fedgela"]
    given = ["--device", "cpu", "--tiny", "rounds_small_serial", "check_compile", *cells]
    first = command(tmp_path, *given, "--images", str(tmp_path / "absent"))
    assert first.returncode == 1
    assert "rounds_small_serial: failed: " in first.stdout
    assert "data.root=" in first.stdout
    assert "check_compile: device cpu, ok True" in first.stdout
    second = command(tmp_path, *given, "--images", str(write_images(tmp_path / "images")))
    assert second.returncode == 0, second.stdout
    assert "check_compile: is there" in second.stdout
    assert len(read(tmp_path, "rounds_small_serial")["seconds"]) == 3  # type: ignore[arg-type]
    for name in cells:
        found = read(tmp_path, name)
        assert found["rounds"] == 2
        assert "global/accuracy" in found["final"]  # type: ignore[operator]


@pytest.mark.slow
@NEEDS_COMPILER
def test_the_steps_on_the_pretended_device(tmp_path: Path) -> None:
    """One step of each kind; ResNet-18 takes minutes there."""
    assert command(tmp_path, "--device", "pretended", "--tiny", "check_compile").returncode == 0
    assert "left_out" in read(tmp_path, "check_compile")
    steps = ["presets", "rounds_small_hand-written", "rounds_small_serial"]
    steps += ["fednh_200_rounds", "check_resume", "check_deterministic", "check_bf16"]
    done = command(tmp_path, "--device", "pretended", "--tiny", "--minutes", "30", *steps)
    assert done.returncode == 0, done.stdout
    assert all(read(tmp_path, name)["done"] for name in steps)
    assert read(tmp_path, "presets")["agree"] == 3
    assert all(read(tmp_path, name)["ok"] for name in steps if name.startswith("check"))
    waits = [read(tmp_path, f"rounds_small_{each}")["waits"] for each in ("hand-written", "serial")]
    assert waits == [0, 3]  # of a round
