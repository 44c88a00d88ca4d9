"""Folders of runs from before the modules were sorted into fewer rooms load and go on.

``earlier_runs.tar.xz`` holds them: ``finished`` (FedNH), ``buffered`` (FedBuff with QSGD),
``stopped`` (SCAFFOLD) and ``sweep`` (0: FedAvg, 1: FedNH). The runs ``buffered``, ``stopped`` and
``sweep/1`` are as a process leaves them that is killed after round 2 of 4. ``whole`` has the final
weights of the same runs without a break. Pictures are left out.
"""

import json
import tarfile
from pathlib import Path

import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from support.command_line import fedexp as typed

import fedexp
from fedexp.cli import replay, report, verify
from fedexp.data.readers.digits import TEST_FRACTION
from fedexp.data.train_test import by_class
from fedexp.reporting.runs import read_run

MACHINE = ("2.14.1", "AVX512", "AuthenticAMD")
"""PyTorch's version, the instructions that it used, and the processor's maker."""
WHOLE = {
    "buffered": (
        "whole/buffered.pt",
        "756d141be5e45e7bb3ab6eb7528199d3f487a95cbd15a6e9c059a2c0153f4caf",
    ),
    "stopped": (
        "whole/stopped.pt",
        "3f6c1906b97b60c64f609206f000d3570f7786f7ff1727798b72eef951679bd5",
    ),
    "sweep/1": (  # trains as ``finished``, whose devices set no limit
        "finished/checkpoints/final.pt",
        "f79bcf8c54e3822f1f8d5839e43efe0a44a157e885a82ca490362cfb20c6b15c",
    ),
}
"""Run -> the final weights of the same run without a break, and their digest."""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The folders, in a folder of their own."""
    with tarfile.open(Path(__file__).parent / "earlier_runs.tar.xz") as archive:
        archive.extractall(tmp_path / "earlier", filter="data")
    return tmp_path / "earlier"


def is_like_the_machine_of_the_runs() -> bool:
    """Whether this machine computes the same bits as the one that trained the runs."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    maker = next((line.split()[-1] for line in text.splitlines() if "vendor_id" in line), "")
    return (torch.__version__.split("+")[0], torch.backends.cpu.get_cpu_capability(), maker) == (
        MACHINE
    )


def check_end(folder: Path, name: str) -> None:
    """The run ended as it would have without a break: to the bit on a machine of its kind."""
    summary = json.loads((folder / name / "summary.json").read_text())
    assert summary["rounds"] == 4
    expected = torch.load(folder / WHOLE[name][0])
    found = torch.load(folder / name / "checkpoints" / "final.pt")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5)
    if is_like_the_machine_of_the_runs():
        assert summary["weights_digest"] == WHOLE[name][1]


def test_a_trained_model_loads_and_predicts_as_when_it_was_scored(earlier: Path) -> None:
    digits = load_digits()
    _, test = by_class(digits.target, TEST_FRACTION, 0)
    found = fedexp.load(earlier / "finished").predict(digits.images[test])
    accuracy = (found == digits.target[test].astype(str)).mean()
    summary = json.loads((earlier / "finished" / "summary.json").read_text())
    assert accuracy == pytest.approx(summary["metrics"]["global/accuracy"]["final"], abs=0.01)


def test_a_stopped_run_goes_on_to_the_same_end(earlier: Path) -> None:
    fedexp.run([f"resume={earlier / 'buffered'}"])
    check_end(earlier, "buffered")


def test_auto_finds_the_stopped_run(earlier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = yaml.safe_load((earlier / "stopped/.hydra/overrides.yaml").read_text())
    place = earlier / "outputs" / "2026-01-01"
    place.mkdir(parents=True)
    (place / "12-00-00-0000").symlink_to(earlier / "stopped")
    monkeypatch.chdir(earlier)
    fedexp.run([each for each in saved if not each.startswith("hydra.")] + ["resume=auto"])
    check_end(earlier, "stopped")


def test_a_stopped_sweep_goes_on_and_its_finished_job_stays(earlier: Path) -> None:
    before = (earlier / "sweep/0/summary.json").read_bytes()
    done = typed("-m", f"resume={earlier / 'sweep'}", folder=earlier)
    assert done.returncode == 0, done.stderr
    assert (earlier / "sweep/0/summary.json").read_bytes() == before
    check_end(earlier, "sweep/1")


def test_finished_runs_are_reported_and_replayed(
    earlier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(earlier / "finished"), str(earlier / "sweep/0")])
    said = capsys.readouterr().out
    assert "fednh" in said
    assert "fedavg" in said
    replay.main([str(earlier / "sweep/0"), "system=phones,hospitals"])
    assert "hospitals" in capsys.readouterr().out


def test_a_finished_run_verifies(earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify.main([str(earlier / "finished"), "--rounds", "all"])
    said = capsys.readouterr().out
    assert "the same" in said
    if is_like_the_machine_of_the_runs():
        assert "the same bits through round 4 of 4" in said


def test_groups_that_are_gone_are_no_difference_between_runs(earlier: Path) -> None:
    """The options of ``evaluation`` and ``tracking`` became keys."""
    assert not {"evaluation", "tracking"} & {*read_run(earlier / "finished").choices}
    assert not {"evaluation", "tracking"} & {*read_run(earlier / "sweep/1").choices}
