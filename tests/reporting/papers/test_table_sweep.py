"""A paper's table as a sweep: its jobs, and what the command line changes in it."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import fedexp
from support.federations import compose

from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.reporting.papers.sweep import CELLS, TableSweep, table_presets

CONF = Path(config_folder())
TABLES = [name for name, _ in table_presets([CONF])]


def preset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    return found


def table(name: str) -> TableSweep:
    sweeper = preset(name)["hydra"]["sweeper"]
    return TableSweep.read(name, sweeper["params"], sweeper.get("parts", []))


PRODUCT = TableSweep.read(
    "paper/table1",
    {"experiment": ["paper/a", "paper/b"], "seed": "0,1", "algorithm": "fedavg,fednh"},
    [],
)
PARTS = TableSweep.read(
    "paper/table2",
    {"experiment": "paper/a", "seed": [0]},
    [{"sampler": "weighted,clustered", "rounds": 600}, {"sampler": "hics"}],
)


def test_a_product_has_every_combination_and_seeds_vary_fastest() -> None:
    cells, methods = ("paper/a", "paper/b"), ("fedavg", "fednh")
    assert PRODUCT.jobs() == [
        [f"experiment={cell}", f"algorithm={method}", f"seed={seed}"]
        for cell, method, seed in itertools.product(cells, methods, (0, 1))
    ]
    assert PRODUCT.size() == "2 cells x 2 methods x 2 seeds = 8 jobs"


def test_a_typed_value_replaces_its_axis() -> None:
    narrowed = PRODUCT.with_typed({"algorithm": ["fednh"], "seed": ["5"]})
    assert narrowed.jobs() == [
        ["experiment=paper/a", "algorithm=fednh", "seed=5"],
        ["experiment=paper/b", "algorithm=fednh", "seed=5"],
    ]
    assert narrowed.size() == "2 cells x 1 method x 1 seed = 2 jobs"


def test_other_typed_keys_are_in_every_job() -> None:
    shortened = PRODUCT.with_typed({"rounds": ["60"], "data": ["image_folder"]})
    assert len(shortened.jobs()) == 8
    assert all(job[-2:] == ["rounds=60", "data=image_folder"] for job in shortened.jobs())


@pytest.mark.parametrize(
    ("typed", "jobs"),
    [
        ({}, ["weighted 600", "clustered 600", "hics"]),
        ({"sampler": ["hics"]}, ["hics"]),
        ({"sampler": ["hics", "weighted"]}, ["weighted 600", "hics"]),
        ({"sampler": ["random"]}, ["random 600", "random"]),
        ({"rounds": ["9"]}, ["weighted 9", "clustered 9", "hics 9"]),
        ({"rounds": ["600"]}, ["weighted 600", "clustered 600"]),
    ],
)
def test_a_typed_value_of_some_parts_chooses_them(
    typed: dict[str, list[str]], jobs: list[str]
) -> None:
    def shown(job: Iterable[str]) -> str:
        values = dict(each.split("=") for each in job)
        return " ".join(values[key] for key in ("sampler", "rounds") if key in values)

    assert [shown(job) for job in PARTS.with_typed(typed).jobs()] == jobs


def test_values_that_no_part_joins_are_refused() -> None:
    with pytest.raises(InputError, match=r"sampler=hics rounds=600: paper/table2 has no job"):
        PARTS.with_typed({"sampler": ["hics"], "rounds": ["600"]})


def test_cells_are_chosen_by_name_or_pattern() -> None:
    assert {job[0] for job in PRODUCT.only(["b"]).jobs()} == {"experiment=paper/b"}
    assert PRODUCT.only(["paper/*"]).jobs() == PRODUCT.jobs()
    with pytest.raises(InputError, match=r"c is no cell of paper/table1, which has paper/a, p"):
        PRODUCT.only(["b", "c"])


def test_what_differs_from_the_paper_is_what_changes_results() -> None:
    typed = {"rounds": ["60"], "seed": ["7"], "algorithm": ["fedavg", "fedsc"], "resume": ["auto"]}
    typed |= {"engine": ["vectorized"], "data.root": ["DIR"], "limits.minutes": ["5"]}
    assert PRODUCT.changes(typed) == ["rounds=60", "algorithm=fedsc"]
    assert PARTS.changes({"rounds": ["600"]}) == []


def test_values_are_written_as_on_the_command_line() -> None:
    axes = {"experiment": "a", "x.y": [True, None, 0.5], "targets": "[0.1,0.2]"}
    found = {tuple(job[1:]) for job in TableSweep.read("t", axes, []).jobs()}
    assert found == {(f"x.y={value}", "targets=[0.1,0.2]") for value in ("true", "null", "0.5")}


def test_every_table_has_a_title_that_names_it() -> None:
    titles = dict(table_presets([CONF]))
    assert len(titles) > 40
    for name, title in titles.items():
        number = name.partition("/")[2].removeprefix("table").removeprefix("figure")
        assert number.partition("_")[0] in title.lower().replace("-", ""), name
        assert title.endswith("."), name


@pytest.mark.matrix
@pytest.mark.parametrize("name", [name for name in TABLES if CELLS in table(name).parts[0]])
def test_without_m_a_table_is_its_first_cell(name: str) -> None:
    cell = table(name).first_cell
    if preset(name)["defaults"] != [f"/experiment/{cell}"]:  # made of other presets
        assert compose(f"experiment={name}") == compose(f"experiment={cell}")


@pytest.mark.parametrize("name", ["fednh/table1", "hics/table1_fmnist"])
def test_a_table_sets_what_its_first_cell_sets(name: str) -> None:
    assert compose(f"experiment={name}") == compose(f"experiment={table(name).first_cell}")


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_both_ends_of_every_part_compose(name: str) -> None:
    for part in table(name).parts:
        jobs = TableSweep(name, [part]).jobs()
        for job in (jobs[0], jobs[-1]):
            compose(*job)


VARIANTS = ("_readings", "_tuning", "_released")
"""Endings of tables that choose a setting or train some rows differently."""

PUBLISHED = [
    name
    for name in TABLES
    if "/table" in name and name != "fedgela/table10" and not name.endswith(VARIANTS)
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_table_runs_every_published_row(name: str) -> None:
    """Each row's method and overrides are among the jobs of its cell, whatever else they set."""
    title = f"Table {name.partition('/table')[2].partition('_')[0]}"
    jobs: dict[str, list[set[str]]] = {}
    for job in table(name).jobs():
        (cell,) = (each for each in job if each.startswith("experiment="))
        jobs.setdefault(cell.partition("=")[2], []).append({*job} - {cell})
    assert jobs
    missing = []
    for cell, theirs in jobs.items():
        for row in preset(cell).get("paper") or []:
            for method in row["values"] if row["table"] == title else ():
                wanted = {*method.split(), *row.get("overrides", ())} - defaults(cell)
                if not any(wanted <= job for job in theirs):
                    missing.append((cell, *sorted(wanted)))
    assert missing == []


def defaults(cell: str) -> set[str]:
    """The overrides that change nothing in this cell."""
    return {f"rounds={preset(cell).get('rounds')}"}


WITH_GLOBAL_MODEL = {"fedavg", "fedprox", "moon", "fedrs", "fedgen", "fedlc"}


@pytest.mark.parametrize("number", [2, 3, 4, 5, 10, 11])
def test_fedgela_tunes_the_best_global_model_for_personal_accuracy(number: int) -> None:
    """Of the methods that have one; the others keep their own personal models."""
    jobs = [dict(o.split("=") for o in job) for job in table(f"fedgela/table{number}").jobs()]
    tuned = {job["algorithm"] for job in jobs if job.get("personalization") == "finetune_best"}
    untuned = {job["algorithm"] for job in jobs if "personalization" not in job}
    assert tuned == (tuned | untuned) & WITH_GLOBAL_MODEL
    assert untuned == (tuned | untuned) - WITH_GLOBAL_MODEL
    assert {"fedavg", "fedgela"} <= tuned | untuned


def test_a_table_of_two_kinds_of_methods_can_be_narrowed() -> None:
    narrowed = table("fedgela/table2").only(["svhn_iid"])
    assert narrowed.with_typed({"algorithm": ["fedavg", "fedgela"], "seed": ["0"]}).jobs() == [
        ["experiment=fedgela/svhn_iid", *others, "seed=0"]
        for others in (["algorithm=fedavg", "personalization=finetune_best"], ["algorithm=fedgela"])
    ]
    (alone,) = narrowed.with_typed({"algorithm": ["fedrep"], "seed": ["1"]}).jobs()
    assert alone == ["experiment=fedgela/svhn_iid", "algorithm=fedrep", "seed=1"]


def test_every_cell_of_a_published_table_is_run() -> None:
    missing = []
    for path in (CONF / "experiment").glob("*/*.yaml"):
        cell = path.relative_to(CONF / "experiment").with_suffix("").as_posix()
        for row in preset(cell).get("paper") or []:
            name = f"{cell.partition('/')[0]}/{row['table'].lower().replace(' ', '')}"
            names = [each for each in TABLES if each == name or each.startswith(f"{name}_")]
            ran = {c for each in names for part in table(each).parts for c in part["experiment"]}
            if cell not in ran:
                missing.append((cell, row["table"]))
    assert missing == []


TINY = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "data=digits", "model=mlp"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "checkpoint.every=1"]


@pytest.mark.slow
def test_a_killed_table_goes_on_by_the_same_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedexp.train", "-m", "experiment=fednh/figure4", *TINY]
    command += ["head.rho=0.1,0.9", "seed=0,1", "rounds=2", "resume=auto"]

    def launch() -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    for job, file in enumerate(("summary.json", "checkpoints/round_0001")):
        run = launch()
        while not list(tmp_path.glob(f"multirun/*/*/{job}/{file}")):
            assert run.poll() is None
            time.sleep(0.05)
        run.kill()
        run.communicate()
    done = tmp_path.glob("multirun/*/*/0/summary.json")
    before = {path: path.stat().st_mtime_ns for path in done}
    last = launch()
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    assert "1 cell x 1 method x 2 values of head.rho x 2 seeds = 4 jobs" in said
    assert "differs from the preset: clients.count=4" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (folder,) = tmp_path.glob("multirun/*/*")
    assert len(list(folder.glob("*/summary.json"))) == 4
    assert (folder / "sweep.csv").exists()


def test_without_m_the_output_says_how_to_run_the_whole(tmp_path: Path) -> None:
    done = fedexp("experiment=fednh/figure4", *TINY, "rounds=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "fedexp: fednh/figure4 is a table; this runs its first cell, fednh/cifar10_dir03; "
        "the whole table: fedexp -m experiment=fednh/figure4"
    )


def test_two_tables_at_once_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    done = fedexp("-m", "experiment=fednh/table1,fednh/table2", folder=tmp_path)
    assert done.returncode == 1
    line = "experiment=fednh/table1,fednh/table2: fednh/table1 sweeps by itself; name it alone"
    assert done.stderr.strip() == f"fedexp: {line}"
    assert list(tmp_path.glob("multirun/*/*")) == []
