"""The command line, as its users type it."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.command_line import fedexp, fedexp_partition
from support.short_runs import NO_PICTURES
from support.wandb_log import records, run_files

from fedexp import run
from fedexp.errors import InputError

METRICS = "outputs/*/*/metrics.jsonl"
TINY = ["rounds=2", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
QUIET = ["tracking.wandb.mode=disabled", *NO_PICTURES]


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


def test_help_shows_groups_and_examples(tmp_path: Path) -> None:
    done = fedexp("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "\naggregator: adagrad, adam, agnostic" in done.stdout
    assert "\nexperiment/fednh: cifar100_dir03, " in done.stdout
    assert "\nmethod" not in done.stdout
    assert "\nhydra" not in done.stdout
    assert done.stdout.count("\n  fedexp ") >= 5
    assert list(tmp_path.iterdir()) == []


def test_help_lists_your_own_options(tmp_path: Path) -> None:
    for file in ("own/data/mine.yaml", "own/table/one.yaml"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("lam: 1\n")
    done = fedexp("--config-dir", "own", "--help", folder=tmp_path)
    assert "image_folder, mine, shakespeare" in done.stdout
    assert "\ntable: one\n" in done.stdout


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"torch", "lightning", "wandb", "pandas", "matplotlib"}
    code = f"import sys, fedexp.train; print(sorted({heavy} & set(sys.modules)))"
    assert python("-c", code, folder=tmp_path).stdout.strip() == "[]"


def test_cfg_prints_the_whole_config(tmp_path: Path) -> None:
    done = fedexp("--cfg", "job", "algorithm=fedprox", folder=tmp_path)
    for line in ("seed: 0", "  per_round: 10", "  mu: 0.01", "  beta: 0.3", "    of: all"):
        assert line in done.stdout.splitlines()


def test_a_run_ends_with_a_table_and_its_folder(tmp_path: Path) -> None:
    names = "names = list(sys.modules)"
    imports = f"{names}; print(*map(names.index, ('wandb.sdk.launch', 'lightning')))"
    code = f"import sys, fedexp.train; fedexp.train.main(); {imports}"
    done = python("-c", code, *TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "global/accuracy" in done.stdout
    before, after = map(int, done.stdout.splitlines()[-1].split())
    assert before < after  # W&B is slow to import after Lightning
    (folder,) = tmp_path.glob("outputs/*/*")
    assert str(folder) in done.stdout
    assert (folder / "summary.json").exists()
    assert done.stderr == "INFO engine=auto: serial, because fewer than 8 clients train at once\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rounds=-1"], "fedexp: rounds=-1: should be greater than 0"),
        (["data=image_folder"], "fedexp: data.root: must be given, as data.root=VALUE"),
        (
            ["data=tabular"],
            "fedexp: data.path, data.target: must be given, as data.path=VALUE data.target=VALUE",
        ),
        (
            ["data=spiral", "data.augment=flip"],
            "fedexp: data.augment=flip: needs images, which spiral lacks; should be none",
        ),
        (["rounds=${nope}"], "fedexp: rounds: Interpolation key 'nope' not found"),
        (["resume=5"], "fedexp: resume=5: should be a valid string"),
        (["resume=${nope}"], "fedexp: resume: Interpolation key 'nope' not found"),
        (
            ["hydra.run.dir=/dev/null/run"],
            "fedexp: hydra.run.dir=/dev/null/run: cannot be made (Not a directory)",
        ),
        (
            ["-m", "seed=0,1", "hydra.sweep.dir=/dev/null/sweep"],
            "fedexp: hydra.sweep.dir=/dev/null/sweep: cannot be made (Not a directory)",
        ),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_1(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    done = fedexp(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == line
    assert done.stdout == ""
    assert not list(tmp_path.glob("outputs/*/*"))  # nothing ran, nothing is left


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "measure.global.targets={}",
            "Error merging override measure.global.targets={} Cannot merge",
        ),
        ("resume=${nope}", "resume: Interpolation key 'nope' not found"),
        ("hydra.run.dir=/dev/null/run", "hydra.run.dir=/dev/null/run"),
    ],
)
def test_from_python_they_are_one_line_too(override: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        run([override])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    done = fedexp("engine.device=cuda", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("fedexp: engine.device=cuda: not on this machine")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_is_saved_and_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    some = [*TINY[1:], "engine=serial", "measure.personal=null", *QUIET]
    command = [sys.executable, "-m", "fedexp.train", "rounds=100000", *some]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (found := [path for path in tmp_path.glob(METRICS) if path.stat().st_size]):
        time.sleep(0.1)
    run.send_signal(number)
    _, said = run.communicate(timeout=200)
    ctrl_c = number == signal.SIGINT
    assert run.returncode == (130 if ctrl_c else 0)
    folder = found[0].parent
    first, last = said.strip().splitlines()
    assert first.startswith("fedexp: stopping when this round is done")
    done = len(found[0].read_text().splitlines())
    what = "interrupted" if ctrl_c else f"{number.name}: stopped after round {done} of 100000"
    assert last == (
        f"fedexp: {what}; to go on, add resume={folder} (or resume=auto) to the same command"
    )
    assert (folder / "summary.json").exists() != ctrl_c
    assert (folder / "checkpoints" / f"round_{done:04d}").exists()

    resumed = fedexp(f"rounds={done + 1}", *some, "resume=auto", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.strip() == f"INFO resume: {folder} goes on after round {done}"
    lines = [json.loads(line) for line in found[0].read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, done + 2))
    assert len(list(tmp_path.glob("outputs/*/*"))) == 1


@pytest.mark.slow
def test_a_sweep_of_two_processes(tmp_path: Path) -> None:
    done = python(
        *[
            "-m",
            "fedexp.train",
            "-m",
            *TINY,
            "algorithm=fedavg,fedprox",
            "seed=0,1",
            "hydra/launcher=joblib",
        ],
        "hydra.launcher.n_jobs=2",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = tmp_path.glob("multirun/*/*")
    jobs = sorted(path.parent for path in sweep.glob("*/summary.json"))
    assert [job.name for job in jobs] == ["0", "1", "2", "3"]
    seen = [json.loads((job / "summary.json").read_text()) for job in jobs]
    assert len({summary["weights_digest"] for summary in seen}) == 4

    runs = [records(run_files(job)[0])[0:] for job in jobs]
    started = [next(r.run for r in each if r.HasField("run")) for each in runs]
    assert {run.run_group for run in started} == {f"algorithm {sweep.name}"}
    assert len({run.run_id for run in started}) == 4

    with (sweep / "sweep.csv").open() as file:
        rows = {row["configuration"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"algorithm=fedavg", "algorithm=fedprox"}
    finals = [summary["metrics"]["global/accuracy"]["final"] for summary in seen[:2]]
    mean = float(rows["algorithm=fedavg"]["global/accuracy/mean"])
    assert mean == pytest.approx(sum(finals) / 2)
    assert rows["algorithm=fedavg"]["seeds"] == "2"
    assert "algorithm=fedprox" in done.stdout
    assert "±" in done.stdout


@pytest.mark.slow
def test_a_sweep_goes_on_with_the_jobs_that_are_left(tmp_path: Path) -> None:
    sweep = ["-m", *TINY, "seed=0,1,2", "checkpoint.every=1", "tracking.wandb.mode=disabled"]
    sweep += ["measure.personal=null"]
    first = fedexp(*sweep, folder=tmp_path)
    assert first.returncode == 0, first.stderr
    (folder,) = tmp_path.glob("multirun/*/*")
    table = (folder / "sweep.csv").read_text()
    before = {path.parent.name: path.read_text() for path in folder.glob("*/summary.json")}
    times = (folder / "0" / "summary.json").stat().st_mtime_ns
    for name in ("summary.json", "checkpoints/round_0002"):  # job 1 was killed in its last round
        (folder / "1" / name).rename(tmp_path / Path(name).name)
    shutil.rmtree(folder / "2")  # job 2 had not begun
    (folder / "sweep.csv").unlink()

    again = fedexp(*sweep, "resume=auto", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert list(tmp_path.glob("multirun/*/*")) == [folder]
    assert f"{folder.relative_to(tmp_path)}" in again.stderr.splitlines()[0]
    assert f"{folder / '1'} goes on after round 1" in again.stderr
    assert (folder / "0" / "summary.json").stat().st_mtime_ns == times
    assert (folder / "sweep.csv").read_text() == table
    for job, text in before.items():
        now = json.loads((folder / job / "summary.json").read_text())
        assert now["weights_digest"] == json.loads(text)["weights_digest"]


def test_another_config_does_not_go_on_and_touches_nothing(tmp_path: Path) -> None:
    some = [*TINY, *QUIET]
    assert fedexp(*some, "hydra.run.dir=run", folder=tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    refused = {
        ("resume=run", "optimizer.lr=0.5", "local.epochs=2"): (
            "resume=run: the config has changed; the run had local.epochs=1, optimizer.lr=0.02"
        ),
        ("hydra.run.dir=run",): (
            "hydra.run.dir=run: already holds a run; name another folder, or resume the run with "
            "resume=run"
        ),
    }
    for overrides, line in refused.items():
        done = fedexp(*some, *overrides, folder=tmp_path)
        assert done.returncode == 1
        assert done.stderr.strip() == f"fedexp: {line}"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_failed_job_does_not_stop_the_others(tmp_path: Path) -> None:
    some = [*TINY, *QUIET]
    done = fedexp(*some, "-m", "partition.beta=0,0.5", folder=tmp_path)  # -m may stand anywhere
    assert done.returncode == 1
    assert "partition.beta=0 failed: partition.beta=0: should be greater than 0" in done.stderr
    assert "Traceback" not in done.stderr
    (summary,) = tmp_path.glob("multirun/*/*/*/summary.json")
    assert summary.parent.name == "1"
    failed = summary.parent.parent / "0"
    assert "partition.beta=0" in (failed / "fedexp.log").read_text()
    assert f"Failed: {failed.relative_to(tmp_path)}" in done.stdout
    assert len((failed.parent / "sweep.csv").read_text().splitlines()) == 2


def test_the_preview_prints_where_its_picture_lies(tmp_path: Path) -> None:
    done = fedexp_partition("partition.beta=0.1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    picture, table = map(Path, done.stdout.split()[-2:])
    assert picture.read_bytes().startswith(b"\x89PNG")
    _, *rows = table.read_text().splitlines()
    assert len(rows) == 20
    first = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["0"])
    assert first.split()[2:-1] == rows[0].split(",")[1:]  # between its sum and its classes
    assert not list(tmp_path.rglob("metrics.jsonl"))
