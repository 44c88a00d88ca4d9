"""The sweeper of tables: what it says of a typed value, and how it refuses a key."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf
from support.run_files import write_run

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.errors import InputError
from fedexp.reporting.leaderboard.tuning import Tuning, trial
from fedexp.runtime import sweep_interrupts
from fedexp.runtime.limits import Sweep, stop_sweep
from hydra_plugins import fedexp_tables
from hydra_plugins.fedexp_tables import TableSweeper


@pytest.fixture(autouse=True)
def config_tree() -> Iterator[None]:
    with initialize(config_folder()):
        yield


def sweeper(overrides: Sequence[str]) -> TableSweeper:
    """The sweeper that ``fedexp -m`` makes of these overrides."""
    loader = GlobalHydra.instance().config_loader()
    config = loader.load_configuration("config", list(overrides), RunMode.MULTIRUN)
    own = config.hydra.sweeper
    parts = own.parts, own.factorial, own.cells
    made = TableSweeper(own.params, *parts, own.tune, own.max_batch_size)
    made.config, made.hydra_context = config, HydraContext(loader, None)  # type: ignore[arg-type]
    return made


ONE_CELL = ["experiment=fednh/table1", "algorithm=fedavg,fednh", "hydra.sweeper.cells=[tiny_dir03]"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("typed", "differs"),
    [
        (["clients.count=100"], ""),
        (["optimizer.lr=1e-2", "data=tiny_imagenet"], ""),
        (["clients.count=100", "rounds=60"], "; differs from the preset: rounds=60"),
        (["local.grad_clip=null"], "; differs from the preset: local.grad_clip=null"),
        # FedAvg's head has no rho.
        (["++head.rho=0.9"], "; differs from the preset: ++head.rho=0.9"),
        (["data=digits"], "; differs from the preset: data=digits"),
    ],
)
def test_a_typed_value_that_the_preset_has_is_no_difference(
    typed: list[str], differs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ONE_CELL, *typed]
    sweeper(arguments)._jobs([each for each in arguments if not each.startswith("hydra.")])
    said = capsys.readouterr().err
    assert said == f"fedexp: fednh/table1: 1 cell x 2 methods x 3 seeds = 6 jobs{differs}\n"


def test_a_key_that_one_method_lacks_is_refused_with_its_name() -> None:
    jobs = [
        [f"algorithm={name}", "rounds=1", "regularizer.alpha=0.5", f"seed={seed}"]
        for name in ("feddyn", "scaffold", "feddc")
        for seed in (0, 1)
    ]
    made = sweeper([])
    made._check([job for job in jobs if "algorithm=scaffold" not in job])
    message = r"^algorithm=scaffold: Could not override 'regularizer.alpha'"
    with pytest.raises(HydraException, match=message):
        made._check(jobs)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("global/accuracy", r"^objective=global/accuracy: settings are chosen on validation data"),
        ("validation/loss", r"^objective=validation/loss: a contest chooses the highest value"),
        ("validation/balanced_accuracy", None),
    ],
)
def test_a_contest_chooses_by_the_highest_value_on_validation_data(
    objective: str, message: str | None
) -> None:
    made = sweeper(["experiment=leaderboard/digits_dir03", "hydra.sweeper.tune.seed=9", BUDGETS])
    jobs = [["experiment=leaderboard/digits_dir03", f"objective={objective}"]]
    with nullcontext() if message is None else pytest.raises(InputError, match=message):
        made._check(jobs)
    sweeper([])._check(jobs)  # no contest


BUDGETS = "hydra.sweeper.tune.budgets=[1]"


def test_a_factorial_experiment_runs_each_combination_seed_by_seed() -> None:
    arguments = ["experiment=factorial/cifar10", "seed=0,1", "head=linear", "regularizer=dynamic"]
    jobs = sweeper(arguments)._jobs(arguments)
    assert len(jobs) == 2 * 2 * 4  # seeds, cells, and levels of loss and sampler
    assert [job[-1] for job in jobs] == ["seed=0"] * 8 + ["seed=1"] * 8
    first = [each for each in jobs[0] if not each.startswith(("experiment", "algorithm", "comp"))]
    assert first == [
        *("head=linear", "loss=cross_entropy", "regularizer=dynamic", "sampler=random"),
        *("aggregator=sample_weighted", "seed=0"),  # the product of -, -, + and - is -
    ]


def test_cells_of_a_sweep_without_cells_are_refused() -> None:
    arguments = ["experiment=factorial/digits"]
    with pytest.raises(InputError, match=r"^hydra\.sweeper\.cells=\['x'\]: is for tables"):
        sweeper([*arguments, "hydra.sweeper.cells=[x]"])._jobs(arguments)


def test_the_controls_of_a_tables_methods_are_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["experiment=leaderboard/digits", "algorithm=fedavg,fednh,fedgela", "seed=0,1"]
    cells = "hydra.sweeper.cells=[digits_dir03]"
    made = sweeper([*arguments, cells])
    jobs = made._jobs(arguments)
    assert "fedexp: 4 further jobs of 2 x FedAvg as control\n" in capsys.readouterr().err
    cell, (_, *others) = "experiment=leaderboard/digits_dir03", jobs[::2]
    assert others == [
        [cell, "algorithm=fednh", "seed=0"],
        [
            *(cell, "algorithm=fedavg", "head=cosine", "aggregator=uniform"),
            *("local.grad_clip=10", "seed=0"),
        ],
        [cell, "algorithm=fedgela", "seed=0"],
        [cell, "algorithm=fedavg", "local.grad_clip=20", "seed=0"],
    ]
    made._check(made._tuning.one_trial_each(jobs[2:6]))  # type: ignore[union-attr]


class Finishes:
    """A launcher whose jobs finish at once; during job ``stops_in`` the sweep's time ends.

    Args:
        folder: the sweep's folder.
        stops_in: the number of this job; None to finish all.
        rounds: the rounds in the config of a job, which runs one.
    """

    def __init__(self, folder: Path, stops_in: int | None = None, rounds: int = 1) -> None:
        self.folder, self.stops_in, self.rounds, self.jobs = folder, stops_in, rounds, 0

    def launch(self, jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        self.jobs += len(jobs)
        return [self._one(number) for number in range(first, first + len(jobs))]

    def _one(self, number: int) -> JobReturn:
        own = self.folder / str(number)
        write_run(own, ["seed=0"], [{"validation/accuracy": 0.5}])
        if number == self.stops_in:
            stop_sweep("SIGUSR1")
        done = JobReturn(status=JobStatus.COMPLETED)
        kept = {"objective": "validation/accuracy", "rounds": self.rounds}
        done.cfg = OmegaConf.create({**kept, "optimizer": {"lr": 1}})
        runtime = {"output_dir": str(own), "version": "1.3"}
        done.hydra_cfg = OmegaConf.create({"hydra": {"runtime": runtime, "job": {"num": number}}})
        done.return_value = 0.5
        return done


def test_a_sweep_keeps_no_config_of_a_finished_job(tmp_path: Path) -> None:
    """Thousands of configs would fill the memory of the process that runs the sweep."""
    made = sweeper([])
    made.launcher = Finishes(tmp_path)  # type: ignore[assignment]
    ((one,),) = made._launch([["seed=0"]])
    assert one.cfg == {"objective": "validation/accuracy", "rounds": 1}
    assert one.hydra_cfg == {"hydra": {"runtime": {"output_dir": f"{tmp_path}/0"}}}
    assert one.return_value == 0.5


CONTEST = [
    "experiment=leaderboard/digits_dir005",
    "algorithm=fedavg",
    "+hydra.sweeper.tune={budgets: [2], seed: [100], common: {optimizer.lr: 0.1}}",
]


@pytest.mark.parametrize(
    ("stops_in", "ran", "left"),
    [
        (None, 3, False),  # two trials and a run with the chosen learning rate
        (1, 2, True),  # the last trial: the chosen one has not run
        (2, 3, False),  # the last job of all: nothing is left
    ],
)
def test_a_contest_that_stops_says_whether_jobs_are_left(
    stops_in: int | None, ran: int, left: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweeper([*CONTEST, f"hydra.sweep.dir={tmp_path}"])
    made.launcher = Finishes(tmp_path, stops_in)  # type: ignore[assignment]
    made.sweep([*CONTEST[:2], "seed=0"])
    assert made.launcher.jobs == ran  # type: ignore[attr-defined]
    assert Sweep.has_left_jobs == left
    advice = "fedexp: SIGUSR1: the sweep stopped; to go on, add resume="
    assert (advice in capsys.readouterr().err) == left


def test_after_ctrl_c_in_its_trials_a_contest_runs_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib's processes finish their rounds, and the sweep's process counts the Ctrl-C."""
    made = sweeper([*CONTEST, f"hydra.sweep.dir={tmp_path}"])
    made.launcher = Finishes(tmp_path)  # type: ignore[assignment]
    launch = made.launcher.launch

    def interrupted(jobs: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        monkeypatch.setattr(sweep_interrupts._State, "interrupts", 1)
        return launch(jobs, first)

    monkeypatch.setattr(made.launcher, "launch", interrupted)
    made.sweep([*CONTEST[:2], "seed=0"])
    assert made.launcher.jobs == 2  # type: ignore[attr-defined]


def test_a_sweep_whose_last_job_stops_before_its_last_round_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweeper([f"hydra.sweep.dir={tmp_path}"])
    made.launcher = Finishes(tmp_path, stops_in=0, rounds=9)  # type: ignore[assignment]
    made.sweep(["seed=0"])
    assert not Sweep.has_left_jobs
    assert "fedexp: SIGUSR1: the sweep stopped; to go on, add resume=" in capsys.readouterr().err


def test_the_cost_of_a_factorial_experiment_has_the_trials_that_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["experiment=factorial/digits_five", "hydra.sweeper.tune.earlier=[before]"]
    made = sweeper([*typed, f"hydra.sweep.dir={tmp_path}"])
    monkeypatch.setattr(fedexp_tables, "announce_seconds", lambda *_: None)
    every: list[list[str]] = []

    def known(tuning: Tuning) -> dict[frozenset[str], float]:
        every.extend(tuning.trials(made._jobs(typed[:1])))
        return {trial(each): 0.5 for each in every[1:]}

    monkeypatch.setattr(fedexp_tables, "earlier_scores", known)
    made.launcher = Finishes(tmp_path)  # type: ignore[assignment]
    made.sweep(typed[:1])
    said = capsys.readouterr().err
    assert len(every) > 2
    assert "; 1 trials and " in said
    assert "fedexp: first 1 trials of settings\n" in said
