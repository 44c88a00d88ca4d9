"""A report over folders of other people: an odd file costs its own run, in one line."""

import json
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.run_files import CONFIG, HEADLINES, accuracies, write_run

from fedexp.cli.report import main
from fedexp.drawing.data_figure import LARGEST, read_numbers
from fedexp.reporting.hyperparameter import varied_number
from fedexp.reporting.report import Report
from fedexp.reporting.runs import read_runs

DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "[" * 200 + "]" * 200  # within what Python reads


def replace(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Writes a file of a run anew."""

    def change(run: Path) -> None:
        (run / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def pipe(name: str) -> Callable[[Path], None]:
    """Whoever reads it waits for ever."""

    def change(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return change


def huge(name: str) -> Callable[[Path], None]:
    """A file of a TiB that takes no room on the disk, but in memory."""
    return lambda run: os.truncate(run / name, 2**40)


def identity(**changes: Any) -> str:
    """A ``run.json`` with other contents."""
    whole = {"config": CONFIG, "wandb_id": "0", "headlines": HEADLINES}
    return json.dumps({**whole, **changes})


def config(**changes: Any) -> str:
    return identity(config={**CONFIG, "rounds": 1, "seed": 1, **changes})


def targets(value: Any) -> str:
    return config(measure={"global": {"targets": value}})


def paper(**changes: Any) -> str:
    row = {"table": "T", "metric": "global/accuracy", "statistic": "final", "values": {"a=b": 0.5}}
    return config(paper=[row | changes])


def summary(**changes: Any) -> str:
    whole = {"overrides": [], "choices": {}, "wall_time_s": 1.0, "metrics": {}, "rounds": 1}
    return json.dumps({**whole, **changes})


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "deep run.json": (replace("run.json", DEEP), "run.json is nested too deeply"),
    "deep config": (
        replace("run.json", config(x=json.loads(NESTED))),
        "run.json is nested too deeply",
    ),
    "deep summary": (replace("summary.json", DEEP), "summary.json is nested too deeply"),
    "deep metrics": (
        replace("metrics.jsonl", f'{{"round": 1, "x": {DEEP}}}\n'),
        "metrics.jsonl is nested too deeply",
    ),
    "targets of text": (
        replace("run.json", targets(["high"])),
        "run.json cannot be read: measure.global.targets=['high'] should be numbers",
    ),
    "targets as text": (
        replace("run.json", targets("0.5")),
        "run.json cannot be read: measure.global.targets=0.5 should be numbers",
    ),
    "a measure of text": (
        replace("run.json", config(measure={"global": "yes"})),
        "run.json cannot be read: 'str' object has no attribute 'get'",
    ),
    "headlines of text": (
        replace("run.json", identity(headlines="all")),
        "its run.json is damaged or another program's",
    ),
    "a list": (replace("run.json", "[]"), "its run.json is damaged or another program's"),
    "a name": (
        replace("run.json", '{"name": "x"}'),
        "its run.json is damaged or another program's",
    ),
    "no text": (
        replace("run.json", b"\xff\xfe\x00"),
        "its run.json is damaged or another program's",
    ),
    "a summary that is a list": (
        replace("summary.json", "[]"),
        "summary.json cannot be read: 'list' object has no attribute 'get'",
    ),
    "a time of text": (
        replace("summary.json", summary(wall_time_s="long")),
        "summary.json cannot be read: wall_time_s should be a number",
    ),
    "overrides of text": (
        replace("summary.json", summary(overrides="seed=1")),
        "summary.json cannot be read: overrides should be a list of texts",
    ),
    "choices of choices": (
        replace("summary.json", summary(choices={"data": {"name": []}})),
        "summary.json cannot be read: choices should be names",
    ),
    "a number beyond all": (
        replace("metrics.jsonl", f'{{"round": 1, "global/accuracy": 1{"0" * 400}}}\n'),
        "metrics.jsonl cannot be read: int too large to convert to float",
    ),
    "rounds beyond all": (
        replace("run.json", config(rounds=10**400)),
        "its run.json is damaged or another program's",
    ),
    "a pipe for run.json": (
        pipe("run.json"),
        "run.json cannot be read: run.json should be a file, not a pipe or device",
    ),
    "a pipe for metrics": (
        pipe("metrics.jsonl"),
        "metrics.jsonl cannot be read: metrics.jsonl should be a file, not a pipe or device",
    ),
    "a pipe for a summary": (
        pipe("summary.json"),
        "summary.json cannot be read: summary.json should be a file, not a pipe or device",
    ),
    "a huge run.json": (
        huge("run.json"),
        "run.json cannot be read: run.json should be smaller than 1 GiB",
    ),
    "huge metrics": (
        huge("metrics.jsonl"),
        "metrics.jsonl cannot be read: metrics.jsonl should be smaller than 1 GiB",
    ),
    "a paper of text": (replace("run.json", config(paper="T")), "paper=T: should be a list"),
    "a target of text": (
        replace("run.json", paper(metric="rounds_to/high", values={"a=b": 9})),
        "rounds_to/high: should be rounds_to/ and a number",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_run_is_left_out_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, reason = ODD[name]
    write_run(tmp_path / "good", [], accuracies(0.25, 0.75))
    odd = write_run(tmp_path / "odd", ["seed=1"])
    change(odd)
    main([str(tmp_path), "--to", str(tmp_path / "report"), "--format", "md,csv"])
    said = capsys.readouterr()
    assert "1 runs, 1 finished" in said.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"{odd}: ")
    assert line.endswith(reason)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "summary.json"])
def test_a_file_that_is_a_link_out_of_its_run_is_not_followed(name: str, tmp_path: Path) -> None:
    other = write_run(tmp_path / "elsewhere")
    run = write_run(tmp_path / "runs" / "0")
    (run / name).unlink()
    (run / name).symlink_to(other / name)
    runs, problems = read_runs([tmp_path / "runs"])
    assert (runs, problems) == (
        [],
        [f"{run}: {name} is a link out of the folder, not followed"],
    )


def test_a_checkpoint_that_is_a_link_out_of_its_run_is_not_followed(tmp_path: Path) -> None:
    """Its copy would take the place of the damaged ``run.json``."""
    copy = write_run(tmp_path / "elsewhere") / "run.json"
    (checkpoints := write_run(tmp_path / "runs" / "0") / "checkpoints").mkdir(exist_ok=True)
    (checkpoints.parent / "run.json").write_bytes(b"")
    copy.rename(copy.with_name("identity.json"))
    (checkpoints / "round_0001").symlink_to(copy.parent)
    assert not read_runs([tmp_path / "runs"])[0]


def test_hydras_files_are_no_pipes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False)
    pipe(".hydra/overrides.yaml")(run)
    reason = "overrides.yaml should be a file, not a pipe or device"
    assert read_runs([run])[1] == [f"{run}: .hydra cannot be read: {reason}"]


def test_hydras_files_may_have_neither_links_nor_aliases(tmp_path: Path) -> None:
    """Nine levels of nine aliases each are half a billion texts."""
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    bomb = write_run(tmp_path / "runs" / "bomb", finished=False)
    (bomb / ".hydra" / "hydra.yaml").write_text("\n".join(["a0: &a0 [x]", *levels]))
    linked = write_run(tmp_path / "runs" / "linked", finished=False)
    (linked / ".hydra" / "hydra.yaml").rename(tmp_path / "hydra.yaml")
    (linked / ".hydra" / "hydra.yaml").symlink_to(tmp_path / "hydra.yaml")
    runs, problems = read_runs([tmp_path / "runs"])
    assert not runs
    assert problems == [
        f"{bomb}: .hydra cannot be read: hydra.yaml should be without aliases",
        f"{linked}: .hydra cannot be read: hydra.yaml should be a file of the folder, not a link",
    ]


def test_a_stray_run_json_hides_no_run(tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "0")
    (tmp_path / "run.json").write_text("[]")
    (tmp_path / "sweep" / "run.json").mkdir()
    (tmp_path / "notes" / "run.json").mkdir(parents=True)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run.json").write_text(DEEP)
    runs, problems = read_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["0"]
    assert problems == [
        f"{tmp_path}: its run.json is damaged or another program's",
        f"{tmp_path / 'deep'}: run.json is nested too deeply",
        f"{tmp_path / 'notes'}: its run.json is damaged or another program's",
        f"{tmp_path / 'sweep'}: its run.json is damaged or another program's",
    ]


SIMILARITY, CHOSEN = "heatmap_prototype_similarity_0001", "sampler_times_chosen_0001"


def write_npz(path: Path, **arrays: Any) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def cut_off(path: Path) -> None:
    """The last bytes, which have the list of the arrays, are there; some before them are not."""
    write_npz(path, similarity=np.random.default_rng(0).random((40, 40)))
    content = path.read_bytes()
    path.write_bytes(content[:2000] + content[5000:])


def no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("similarity.npy", "0.5")


PICTURES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "cut off": (f"{SIMILARITY}.npz", cut_off),
    "half": (f"{SIMILARITY}.npz", lambda path: path.write_bytes(b"PK\x03\x04 half")),
    "empty": (f"{SIMILARITY}.npz", lambda path: path.touch()),
    "no array": (f"{SIMILARITY}.npz", no_array),
    "no square": (f"{SIMILARITY}.npz", lambda path: write_npz(path, similarity=np.ones((2, 3)))),
    "a number": (f"{SIMILARITY}.npz", lambda path: write_npz(path, similarity=np.ones(()))),
    "texts": (f"{SIMILARITY}.npz", lambda path: write_npz(path, similarity=np.array([["a"]]))),
    "of lengths": (
        f"{CHOSEN}.npz",
        lambda path: write_npz(path, times_chosen=np.ones(3), label_entropy_nats=np.ones(2)),
    ),
    "infinite": (
        f"{CHOSEN}.csv",
        lambda path: path.write_text("times_chosen,label_entropy_nats\n1,inf\n"),
    ),
    "no rows": (f"{CHOSEN}.csv", lambda path: path.write_text("times_chosen,label_entropy_nats\n")),
    "no number": (f"{SIMILARITY[:-4]}0x.npz", lambda path: write_npz(path, similarity=np.eye(2))),
}


@pytest.mark.parametrize("name", PICTURES)
def test_an_odd_file_of_a_picture_costs_its_panel(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, write = PICTURES[name]
    for n, method in enumerate(("fedavg", "fednh")):
        run = write_run(tmp_path / "runs" / str(n), [f"algorithm={method}"], accuracies(0.1, 0.5))
        (run / "figures").mkdir()
        write_npz(run / "figures" / f"{SIMILARITY}.npz", similarity=np.eye(3))
    (run / "figures" / f"{SIMILARITY}.npz").unlink()
    odd = run / "figures" / file
    write(odd)
    main([str(tmp_path / "runs"), "--to", str(tmp_path / "report")])
    said = capsys.readouterr()
    assert "2 runs, 2 finished" in said.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"{odd}: left out of its picture (")
    assert line in (tmp_path / "report" / "report.md").read_text().replace("\\", "")
    names = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert "heatmap_prototype_similarity" in names
    assert "curves_global_accuracy" in names


@pytest.mark.parametrize("shape", ["(23170, 23170)", f"({2**70},)", "(True,)"])
def test_an_array_that_declares_another_shape_takes_no_memory(shape: str, tmp_path: Path) -> None:
    """The first declares 4 GiB."""
    path = tmp_path / "lie.npz"
    about = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header = b"\x93NUMPY\x01\x00\x76\x00" + about
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("similarity.npy", header.ljust(127) + b"\n" + bytes(1000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"\w"):
        read_numbers(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_picture_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """Arrays of 260 MiB together, packed into 260 KiB, and a table of 256 MiB."""
    path, part = tmp_path / "bomb.npz", bytes(2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("similarity.npy", "other.npy"):
            with archive.open(name, "w") as file:
                for _ in range(130):
                    file.write(part)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"has 260 MiB, more than 256 MiB"):
        read_numbers(path)
    with (tmp_path / "bomb.csv").open("wb") as table:
        table.truncate(LARGEST + 1)
    with pytest.raises(ValueError, match="more than 256 MiB"):
        read_numbers(tmp_path / "bomb.csv")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_picture_is_refused_if_it_unpacks_without_a_bound(tmp_path: Path) -> None:
    """bzip2 packs 64 MiB of zeros into a few bytes, and zipfile unpacks them at once."""
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("similarity.npy", bytes(2**26))
    with pytest.raises(ValueError, match="packed in an unknown way"):
        read_numbers(tmp_path / "bomb.npz")


def test_a_link_out_of_the_run_is_no_picture(tmp_path: Path) -> None:
    write_npz(tmp_path / "other.npz", similarity=np.eye(3))
    run = write_run(tmp_path / "runs" / "0", [], accuracies(0.1, 0.5))
    (run / "figures").mkdir()
    (run / "figures" / f"{SIMILARITY}.npz").symlink_to(tmp_path / "other.npz")
    main([str(tmp_path / "runs"), "--to", str(tmp_path / "report")])
    names = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert names == {"curves_global_accuracy"}


@pytest.mark.parametrize(
    "values",
    [
        ([1, 2], [1, 3], [2]),
        ([[1, 2], [3]], [[1, 2], [4]], [[1]]),
        ([{"a": 1}], [{"a": 2}], [{"b": [1]}]),
        ({"a": [1]}, {"a": [2]}, {"a": {"b": [1]}}),
        ([1], None, 0.5),
        ({}, {"a": 1}, []),
        (True, [True], "yes"),
    ],
)
def test_runs_may_differ_in_lists_and_whatever_a_config_holds(
    values: tuple[Any, ...], tmp_path: Path
) -> None:
    for n, value in enumerate(values):
        for seed in (0, 1):
            folder = tmp_path / "runs" / f"{n}_{seed}"
            history = accuracies(0.1, 0.2 + 0.1 * n)
            write_run(folder, [f"seed={seed}"], history, sampler={"entropies": value})
    made = Report.read(tmp_path / "runs")
    assert len(made.configurations) == len(values)
    assert varied_number(made.configurations) is None
    main([str(tmp_path / "runs"), "--to", str(tmp_path / "report"), "--figures", "all"])
    names = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert {"curves_global_accuracy", "bars_global_accuracy"} <= names


def test_metrics_and_targets_are_shown_together(tmp_path: Path) -> None:
    row = {"global/accuracy": 0.5, "geometry/angle": 90.0}
    write_run(tmp_path / "0", [], [row, row], measure={"global": {"targets": [0.3]}})
    asked = Report.read(tmp_path, metrics=["geometry/angle"], targets=[0.4, 0.9])
    assert asked.metrics == ["geometry/angle", "rounds_to/0.4"]
    assert asked.problems == ["target 0.9: no run reached it"]
    twice = Report.read(tmp_path, metrics=["rounds_to/0.4"], targets=[0.4])
    assert twice.metrics == ["rounds_to/0.4"]
