"""Folders that cannot be used are refused in one line, before Hydra makes anything."""

import json
import os
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.command_line import fedexp, fedexp_partition
from support.refusals import refused
from support.short_runs import NO_PICTURES, contents

from fedexp.cli.resume import with_saved_overrides
from fedexp.cli.sweeps import save_sweep
from fedexp.errors import InputError
from fedexp.state.folder_lock import locked
from fedexp.train import run

TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([f"hydra.run.dir={TOO_LONG}"], f"hydra.run.dir={TOO_LONG}: cannot be used (File name too"),
        (["hydra.run.dir=loop"], "hydra.run.dir=loop: cannot be used (Too many levels of symbolic"),
        (["hydra.run.dir=loop/a"], "hydra.run.dir=loop/a: cannot be used (Too many levels of"),
        (["resume=loop"], "hydra.run.dir=loop: cannot be used (Too many levels of symbolic links)"),
        (
            ["-m", "seed=1,2", f"hydra.sweep.dir={TOO_LONG}"],
            f"hydra.sweep.dir={TOO_LONG}: cannot be used (File name too long)",
        ),
        (
            ["-m", "seed=1,2", "hydra.sweep.dir=loop/a"],
            "hydra.sweep.dir=loop/a: cannot be made (Too many levels of symbolic links)",
        ),
    ],
)
def test_a_name_that_is_too_long_and_links_in_a_circle(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    done = fedexp(*arguments, folder=folder)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"fedexp: {line}")
    assert [path.name for path in folder.iterdir()] == ["loop"]


def test_from_python_it_is_one_line_too() -> None:
    with refused("cannot be used"):
        run([f"hydra.run.dir={TOO_LONG}"])


def test_the_preview_refuses_them_too(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    done = fedexp_partition(f"hydra.run.dir={TOO_LONG}", folder=folder)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.endswith("cannot be used (File name too long); name another folder")


QUICK = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "measure.personal=null"]
QUICK += ["tracking.wandb.mode=disabled", *NO_PICTURES]


def test_resume_alone_takes_the_config_of_that_run(tmp_path: Path) -> None:
    typed = ["algorithm=fedprox", "regularizer.mu=0.5", "rounds=1", *QUICK]
    assert fedexp(*typed, "hydra.run.dir=a run", folder=tmp_path).returncode == 0
    done = fedexp("resume=a run", "rounds=2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a run goes on after round 1" in done.stderr
    saved = json.loads((tmp_path / "a run" / "summary.json").read_text())
    assert (saved["rounds"], saved["choices"]["algorithm"]) == (2, "fedprox")
    result = run([f"resume={tmp_path / 'a run'}", "rounds=3"])
    assert len(result.metrics) == 3


@pytest.mark.slow
def test_resume_alone_takes_the_jobs_of_that_sweep(tmp_path: Path) -> None:
    typed = ["-m", "algorithm=fedavg,fedprox", "rounds=1", *QUICK, "hydra.sweep.dir=sweep"]
    assert fedexp(*typed, folder=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "sweep" / "1")
    done = fedexp("-m", "resume=sweep", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resuming the sweep in sweep" in done.stderr
    saved = json.loads((tmp_path / "sweep" / "1" / "summary.json").read_text())
    assert saved["choices"]["algorithm"] == "fedprox"
    without_m = fedexp("resume=sweep", folder=tmp_path)
    assert without_m.stderr.strip() == (
        "fedexp: resume=sweep: holds a sweep; resume it with -m resume=sweep"
    )


AS_TYPED = ["clients.count=4,5", "clients.per_round=${clients.count}"]


def test_saved_references_to_other_keys_stay_references(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(AS_TYPED, tmp_path / ".hydra" / "overrides.yaml")
    resume = f"resume={tmp_path}"
    assert with_saved_overrides([resume]) == [*AS_TYPED, resume]
    overrides = {"hydra": [], "task": AS_TYPED}
    sweep = {"clients": {"count": 4}, "hydra": {"overrides": overrides}}
    save_sweep(OmegaConf.create(sweep), tmp_path)
    assert with_saved_overrides(["-m", resume]) == ["-m", *AS_TYPED, resume]


def test_a_flag_keeps_its_value_before_the_saved_overrides(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(["loss=robust", "rounds=2"], tmp_path / ".hydra" / "overrides.yaml")
    typed = ["rounds=3", f"resume={tmp_path}"]
    for flags in (["--config-dir", "conf"], ["--config-dir=conf"], []):
        assert with_saved_overrides([*flags, *typed]) == [*flags, "loss=robust", *typed]


@pytest.mark.parametrize("content", ["a: 1", "[1]", "[nope]", "[a=1", "- a=1\n- 2"])
def test_a_file_of_something_else_adds_no_overrides(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(content)
    assert with_saved_overrides([f"resume={tmp_path}"]) == [f"resume={tmp_path}"]
    assert f"{tmp_path / '.hydra' / 'overrides.yaml'}: is no list of overrides" in caplog.text


def test_a_run_that_was_moved_is_resumed_where_it_is(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(["hydra.run.dir=before", "rounds=2"], tmp_path / ".hydra" / "overrides.yaml")
    resume = f"resume={tmp_path}"
    assert with_saved_overrides([resume]) == ["rounds=2", resume]


def test_resume_auto_says_where_it_looked(tmp_path: Path) -> None:
    done = fedexp("resume=auto", "rounds=1", *QUICK, folder=tmp_path)
    line = f"resume=auto: found no unfinished run with this config in {tmp_path / 'outputs'}"
    assert f"fedexp: {line}" in done.stderr.splitlines()


SWEEP = ["-m", "seed=0,1", "rounds=1", *QUICK, "hydra.sweep.dir=s"]


@pytest.mark.slow
def test_a_second_start_of_a_sweep_is_refused_and_the_first_ends_well(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(fedexp, *SWEEP, folder=tmp_path)
        while not (tmp_path / "s" / "0" / "run.json").exists():
            assert not first.done()
            time.sleep(0.01)
        pid = int((tmp_path / "s" / ".lock").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)  # so that it runs for as long as the second
        try:
            second = fedexp(*SWEEP, "resume=auto", folder=tmp_path)
        finally:
            os.kill(pid, signal.SIGCONT)
    line = f"fedexp: s: process {pid} on {socket.gethostname()} is using this folder"
    assert (second.returncode, second.stderr.splitlines()) == (1, [line])
    assert first.result().returncode == 0, first.result().stderr
    assert len(list(tmp_path.glob("s/*/summary.json"))) == 2


def test_a_job_that_is_started_again_goes_on(tmp_path: Path) -> None:
    """SLURM and Ray start a job again as it was, without ``resume``, in its folder."""
    before = run(["rounds=1", *QUICK, f"hydra.run.dir={tmp_path / 's' / '0'}"])
    done = fedexp("-m", "seed=0", "rounds=2", *QUICK, "hydra.sweep.dir=s", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "s/0 goes on after round 1" in done.stderr
    metrics = (before.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in metrics] == [1, 2]


def test_a_sweep_in_whose_folder_another_run_is_does_not_begin(tmp_path: Path) -> None:
    run(["rounds=1", *QUICK, f"hydra.run.dir={tmp_path / 's' / '0'}"])
    typed = ["-m", "seed=0", "optimizer.lr=0.3", "rounds=1", *QUICK, "hydra.sweep.dir=s"]
    done = fedexp(*typed, folder=tmp_path)
    assert done.returncode == 1
    assert "the config has changed; the run had optimizer.lr=0.02" in done.stderr
    assert "Failed: " not in done.stdout


def test_a_refused_run_is_not_changed(tmp_path: Path) -> None:
    """A run of two rounds is killed; then it is resumed with fewer rounds and on no such device."""
    typed = ["rounds=2", "hydra.run.dir=r", *QUICK]
    assert fedexp(*typed, folder=tmp_path).returncode == 0
    (tmp_path / "r" / "summary.json").unlink()
    before = contents(tmp_path / "r")
    for words in (["rounds=1"], ["rounds=3", "engine.device=cuda"]):
        done = fedexp("resume=r", *words, folder=tmp_path)
        assert done.returncode == 1, done.stderr
        with pytest.raises(InputError):
            run([f"resume={tmp_path / 'r'}", *words])
        assert contents(tmp_path / "r") == before
    again = fedexp("resume=r", folder=tmp_path)
    assert again.returncode == 0, again.stderr


def test_refused_jobs_of_a_sweep_are_not_changed(tmp_path: Path) -> None:
    typed = ["seed=0,1", "rounds=1", "checkpoint.keep=0", "hydra.sweep.dir=s", *QUICK]
    assert fedexp("-m", *typed, folder=tmp_path).returncode == 0
    sweep, of_sweep = tmp_path / "s", (tmp_path / "s" / "multirun.yaml").read_bytes()
    before = [contents(sweep / job) for job in "01"]
    refused = fedexp("-m", "resume=s", "rounds=2", folder=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.count("the run is finished and has no checkpoint to resume") == 2
    assert "Failed: s/0; fedexp.log there says why" in refused.stdout
    assert [contents(sweep / job) for job in "01"] == before
    assert (sweep / "multirun.yaml").read_bytes() == of_sweep
    assert fedexp("-m", "resume=s", folder=tmp_path).returncode == 0


def test_a_sweep_goes_on_with_no_other_value_than_its_jobs_have(tmp_path: Path) -> None:
    """It is refused before a job that has not begun runs with the other value."""
    typed = ["-m", "algorithm=fedavg,fedprox", "rounds=1", *QUICK]
    assert fedexp(*typed, "hydra.sweep.dir=s", folder=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "s" / "1")
    before = contents(tmp_path / "s")
    other = fedexp(*typed, "optimizer.lr=0.07", "resume=s", folder=tmp_path)
    assert other.returncode == 1
    *_, last = other.stderr.splitlines()
    said = "fedexp: resume=s/0: the config has changed; the run had optimizer.lr=0.02"
    assert last == said
    assert contents(tmp_path / "s") == before
    again = fedexp(*typed, "resume=s", folder=tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_resume_auto_leaves_a_sweep_alone_that_has_more_rounds(tmp_path: Path) -> None:
    typed = ["-m", "seed=0,1", *QUICK]
    assert fedexp(*typed, "rounds=2", folder=tmp_path).returncode == 0
    (longer,) = tmp_path.glob("multirun/*/*")
    before = [contents(longer / job) for job in "01"]
    shorter = fedexp(*typed, "rounds=1", "resume=auto", folder=tmp_path)
    assert shorter.returncode == 0, shorter.stderr
    assert "resume=auto: found no sweep like this one" in shorter.stderr
    assert [contents(longer / job) for job in "01"] == before


@pytest.mark.parametrize(
    "typed", [["-m", "resume=s"], ["hydra.run.dir=s"], ["hydra.run.dir=s/1"], SWEEP]
)
def test_a_busy_sweep_refuses_every_other_start(typed: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / "s").mkdir(parents=True)
    save_sweep(OmegaConf.create({"hydra": {"overrides": {"hydra": [], "task": []}}}), folder / "s")
    with locked(folder / "s"):
        done = fedexp(*typed, folder=folder)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(" is using this folder")
    assert sorted(path.name for path in (folder / "s").iterdir()) == [".lock", "multirun.yaml"]


def test_a_busy_run_keeps_its_files_of_hydra(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a"):
        done = fedexp("hydra.run.dir=a", "rounds=1", *QUICK, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(" is using this folder\n")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]


@pytest.mark.parametrize("wrong", ["no.such.key=3", "rounds=0"])
def test_a_sweep_that_cannot_begin_leaves_no_folder(wrong: str, tmp_path: Path) -> None:
    done = fedexp("-m", "seed=0,1", wrong, "hydra.sweep.dir=s", folder=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "s").exists()
