"""An artefact verifies elsewhere, tells nothing of its author's machine, and shows each change."""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.own_methods import FILE, LOSS, run_with_own_loss
from support.short_runs import SHORT
from support.tables import wine
from support.verified import edit_json, ways

import fedexp
from fedexp.errors import InputError
from fedexp.reporting.ablation_rows import write_plain
from fedexp.verification.archive import unpack
from fedexp.verification.neutral import neutral, told_names
from fedexp.verification.pack import _requirements, pack
from fedexp.verification.verdict import Outcome, worst
from fedexp.verification.verify import verify

TOLD = [f"tracking.wandb.{key}=my-lab" for key in ("entity", "project", "group", "notes", "id")]
TOLD += ["tracking.wandb.name=my-lab", "tracking.wandb.job_type=my-lab"]
TOLD += ["tracking.wandb.tags=[my-lab]"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact of two runs."""
    place = tmp_path_factory.mktemp("author")
    for seed in range(2):
        run = [f"seed={seed}", "rounds=1", f"hydra.run.dir={place / 'sweep' / str(seed)}", *TOLD]
        fedexp.run([*SHORT, f"data.cache={place / 'cache'}", *run])
    pack(place / "sweep", place / "artefact.zip")
    return place / "artefact.zip"


@pytest.fixture
def unpacked(packed: Path, tmp_path: Path) -> Path:
    unpack(packed, tmp_path / "unpacked")
    return tmp_path / "unpacked"


def test_it_verifies_packed_and_unpacked(packed: Path, unpacked: Path, tmp_path: Path) -> None:
    before = Path.cwd()
    for path in (packed, unpacked):
        found = verify(path, ways(1, to=tmp_path / f"to_{path.name}"))
        assert [(each.place, each.line) for each in found] == [
            (str(path), "its files are as packed"),
            ("report", "every number of 6 files follows from 2 runs"),
            ("runs/0", "the same bits through round 1 of 1"),
            ("runs/1", "the same bits through round 1 of 1"),
        ]
        assert worst(found) == Outcome.SAME
    assert Path.cwd() == before
    assert (tmp_path / "to_artefact.zip" / "artefact" / "README.md").is_file()


def test_it_names_no_folder_or_account_of_its_author(packed: Path, unpacked: Path) -> None:
    author = str(packed.parent).encode()
    names = [path for path in unpacked.rglob("*") if path.is_file()]
    told = [path for path in names if author in path.read_bytes() or b"my-lab" in path.read_bytes()]
    assert not told
    config = json.loads((unpacked / "runs" / "0" / "run.json").read_text())["config"]
    assert config["data"]["cache"] == "/elsewhere/cache"
    assert list(config["tracking"]["trackers"]) == ["jsonl"]
    assert not list(unpacked.rglob("*.pt"))
    assert "torch==" in (unpacked / "requirements.txt").read_text()


def swap_metrics(folder: Path) -> None:
    one, other = (folder / "runs" / n / "metrics.jsonl" for n in "01")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is gone": (lambda f: (f / "runs/1/data.json").unlink(), "runs/1/data.json: is missing"),
    "a file more": (lambda f: (f / "runs/x.txt").write_text("x"), "runs/x.txt: was added"),
    "swapped metrics": (swap_metrics, "runs/0/metrics.jsonl: has changed"),
    "another digest": (
        lambda f: edit_json(f / "artefact.json", lambda a: a["files"].update({"README.md": "0"})),
        "README.md: has changed",
    ),
    "code that no run has": (
        lambda f: ((f / "code").mkdir(), (f / "code/a.py").write_text("x = 1")),
        "code/a.py: is not the code of the runs",
    ),
    "no report": (
        lambda f: (
            shutil.rmtree(f / "report"),
            edit_json(
                f / "artefact.json",
                lambda a: [a["files"].pop(n) for n in list(a["files"]) if n.startswith("report/")],
            ),
        ),
        "report: is missing",
    ),
    "a swapped cell": (
        lambda f: (f / "report/values.csv").write_text(
            re.sub(r"0\.(\d+)", r"0.9\1", (f / "report/values.csv").read_text(), count=1)
        ),
        "values.csv, row ",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_each_change_is_named(name: str, unpacked: Path) -> None:
    change, line = TAMPERED[name]
    change(unpacked)
    found = verify(unpacked, ways(1, jobs=1))
    assert worst(found) == Outcome.DIFFERS
    assert any(line in detail for each in found for detail in each.details), found


def test_a_link_or_a_path_outside_is_one_line(unpacked: Path, tmp_path: Path) -> None:
    record = unpacked / "artefact.json"
    before = record.read_bytes()
    edit_json(record, lambda a: a["files"].update({"../../etc/passwd": "0"}))
    with pytest.raises(InputError, match="etc/passwd: a file may not have this name"):
        verify(unpacked, ways(1))
    record.write_bytes(before)
    os.symlink(tmp_path, unpacked / "runs" / "2")
    with pytest.raises(InputError, match="runs/2: is a link"):
        verify(unpacked, ways(1))


def test_a_report_reads_no_runs_outside(unpacked: Path) -> None:
    edit_json(
        unpacked / "report/sources.json", lambda s: s["arguments"]["read"].update(paths=["/"])
    )
    found = verify(unpacked, ways(1, jobs=1))
    assert found[1].details == ["sources.json: names runs outside of the artefact"]


def test_no_text_of_a_report_escapes_its_check(unpacked: Path) -> None:
    (unpacked / "report" / "report.md").write_text("The accuracy is 1.")
    record = unpacked / "report" / "sources.json"

    def forget(sources: dict[str, Any]) -> None:
        sources["files"].pop("report.md")
        sources["arguments"]["write"][0].remove("md")

    edit_json(record, forget)
    found = verify(unpacked, ways(1, jobs=1))[1]
    assert found.outcome == Outcome.DIFFERS
    assert "report.md: is no file of this report" in found.details
    record.unlink()
    found = verify(unpacked, ways(1, jobs=1))[1]
    assert (found.place, found.outcome) == ("report", Outcome.UNKNOWN)


def test_the_readme_names_each_file_that_the_runs_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are relative paths; an artefact is verified in a folder of its own."""
    (tmp_path / "author").mkdir()
    monkeypatch.chdir(tmp_path / "author")
    wine().to_csv("wine.csv", index=False)
    Path("phones.csv").write_text("samples_per_second,download,upload,latency\n9,1e6,1e6,0\n")
    words = ["data=tabular", "data.path=wine.csv", "data.target=target", "data.subset=null"]
    words += ["system=table", "system.file=phones.csv", "rounds=1"]
    fedexp.run([*SHORT, *words, "hydra.run.dir=run"])
    pack(Path("run"), tmp_path / "artefact.zip")
    (tmp_path / "author").rename(tmp_path / "reviewer")
    with zipfile.ZipFile(tmp_path / "artefact.zip") as archive:
        readme = archive.read("README.md").decode()
    assert "fedexp-verify artefact.zip data.path=PATH system.file=PATH\n" in readme
    place = tmp_path / "reviewer"
    here = {"data.path": f"{place / 'wine.csv'}", "system.file": f"{place / 'phones.csv'}"}
    assert worst(verify(tmp_path / "artefact.zip", ways(1, places=here))) == Outcome.SAME
    unknown = verify(tmp_path / "artefact.zip", ways(1))
    assert worst(unknown) == Outcome.UNKNOWN
    assert "wine.csv" in unknown[-1].details[0]


def test_the_report_of_an_ablation_has_its_differences(tmp_path: Path) -> None:
    for loss in ("ntd", "cross_entropy"):
        run = ["algorithm=fedavg", f"loss={loss}", "rounds=1", f"hydra.run.dir={tmp_path / loss}"]
        fedexp.run([*SHORT, *run])
    write_plain(tmp_path, {"loss": "cross_entropy"})
    assert "report/ablation.csv" in pack(tmp_path, tmp_path / "artefact.zip")
    assert worst(verify(tmp_path / "artefact.zip", ways(1))) == Outcome.SAME


def test_own_code_is_packed_to_read_and_runs_only_if_asked(tmp_path: Path) -> None:
    run = run_with_own_loss(tmp_path, LOSS.replace("\n", "\r\n"))  # as editors on Windows write
    names = pack(run, tmp_path / "own.zip", with_checkpoints=True)
    assert f"code/{FILE}" in names
    assert "runs/checkpoints/final.pt" in names
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        readme = archive.read("README.md").decode()
    assert "fedexp-verify own.zip --run-own-code" in readme
    assert "hydra.run.dir" not in readme
    assert ", device cpu,\n1 thread.\n" in readme
    assert worst(verify(tmp_path / "own.zip", ways(1))) == Outcome.UNKNOWN
    assert worst(verify(tmp_path / "own.zip", ways(1, runs_own_code=True))) == Outcome.SAME


def test_what_is_not_packed(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        pack(packed.parent / "sweep", packed)
    with pytest.raises(InputError, match="no run in it"):
        pack(tmp_path, tmp_path / "a.zip")
    run = run_with_own_loss(tmp_path, f"{LOSS}HOME = '{Path.home()}/data'\n")
    with pytest.raises(InputError, match=r"tells the home folder"):
        pack(run, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


def test_the_requirements_ask_for_versions_that_pypi_has() -> None:
    """PyPI has no builds such as 2.11.0+cu130."""
    about = {"fedexp": {"version": "0.3.0"}, "environment": {"torch": "2.11.0+cu130"}}
    claim: Any = SimpleNamespace(origins=[about])
    assert _requirements(claim) == b"fedexp==0.3.0\ntorch==2.11.0\n"


def test_absolute_paths_and_overrides_of_tracking_become_neutral() -> None:
    assert neutral("/home/ann/cifar") == "/elsewhere/cifar"
    assert neutral({"a": ["data.root=/data/x", "global/accuracy", "1/2", "~/x"]}) == {
        "a": ["data.root=/elsewhere/x", "global/accuracy", "1/2", "~/x"]
    }
    pattern = {"user_pattern": "/(w[0-9]+)_"}
    assert neutral(pattern) == pattern
    assert neutral(["data.user_pattern='/(w[0-9]+)_'"]) == ["data.user_pattern='/(w[0-9]+)_'"]
    assert neutral({"task": ["+tracking.trackers.own.key=x", "seed=1"]}) == {"task": ["seed=1"]}
    assert list(told_names(b"nothing")) == []
