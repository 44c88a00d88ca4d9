"""``hydra/sweeper=optuna``: trials that fail or are cut short, and what is refused."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf
from support.command_line import fedexp
from support.federations import compose
from support.short_runs import NO_PICTURES

from fedexp.errors import InputError
from fedexp.runtime.limits import stop_sweep
from hydra_plugins.fedexp_optuna import StudySweeper, _TrialLauncher

Objective = Callable[[float], float]


class FakeLauncher(Launcher):
    """Evaluates a function of x in place of a job."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.tried: list[float] = []

    def setup(self, **_: Any) -> None:
        pass

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        results = []
        for job in job_overrides:
            x = float(dict(each.split("=") for each in job)["x"])
            self.tried.append(x)
            result = JobReturn(status=JobStatus.COMPLETED)
            result.return_value = self.objective(x)
            results.append(result)
        return results


def search(
    folder: Path,
    objective: Objective,
    metric: str = "validation/accuracy",
    params: Mapping[str, str] | None = None,
    trials: int = 14,
    arguments: Sequence[str] = (),
) -> list[float]:
    """The settings that were tried, in order."""
    sweeper = StudySweeper(
        params={"x": "interval(0.0, 1.0)"} if params is None else params,
        sampler=optuna.samplers.TPESampler(seed=0),
        direction="minimize",
        storage=None,
        study_name=None,
        n_trials=trials,
        n_jobs=1,
        max_failure_rate=0.0,
        search_space=None,
        custom_search_space=None,
    )
    validation = {"_target_": "fedexp.measures.validation.Validation", "every": 1, "first": 1}
    sweeper.config = OmegaConf.create(
        {
            "objective": metric,
            "measure": {"validation": validation},
            "hydra": {"sweep": {"dir": str(folder)}},
        }
    )
    sweeper.hydra_context = SimpleNamespace(config_loader=None)  # type: ignore[assignment]
    fake = FakeLauncher(objective)
    sweeper.trials = _TrialLauncher(fake)
    sweeper.sweep(list(arguments))
    return fake.tried


def parabola(x: float) -> float:
    return -((x - 0.3) ** 2)


@pytest.mark.parametrize("metric", ["validation/accuracy", "validation/loss"])
def test_the_direction_is_that_of_the_objective(metric: str, tmp_path: Path) -> None:
    sign = 1 if metric == "validation/accuracy" else -1
    tried = search(tmp_path, lambda x: sign * parabola(x), metric)
    best = OmegaConf.load(tmp_path / "optimization_results.yaml")
    assert best.best_params.x == min(tried, key=lambda x: abs(x - 0.3))
    assert (tmp_path / "multirun.yaml").exists()


def test_a_failed_trial_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = search(tmp_path, lambda x: math.nan if x < 0.5 else x)
    failed = sum(x < 0.5 for x in tried)
    assert len(tried) == 14
    assert failed > 0
    best = OmegaConf.load(tmp_path / "optimization_results.yaml")
    assert best.best_value == max(tried)
    said = capsys.readouterr().out
    assert f"Best of {14 - failed} trials: validation/accuracy={max(tried):g}: x=" in said


def test_without_any_result_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trial of the search has succeeded"):
        search(tmp_path, lambda x: math.nan, trials=2)


def test_a_search_that_is_stopped_goes_on_with_the_same_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = search(tmp_path / "whole", parabola)

    def stops_soon(x: float) -> float:
        if x == whole[4]:
            stop_sweep("SIGTERM")
        return parabola(x)

    assert search(tmp_path / "stopped", stops_soon) == whole[:5]
    assert "fedexp: SIGTERM: the search stopped; to go on, add resume=" in capsys.readouterr().err
    # Begun again, it asks for the finished trials again, which their folders answer.
    assert search(tmp_path / "stopped", parabola) == whole


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"metric": "global/accuracy"}, "objective=global/accuracy: settings are chosen on valid"),
        ({"metric": "personal/std"}, "set objective=validation/personal_accuracy data.validation="),
        ({"metric": "global/loss"}, "set objective=validation/accuracy data.validation="),
        ({"arguments": ["seed=0,1"]}, "seed: would be searched for the best one"),
        ({"params": {"seed": "choice(0,1)"}}, "seed: would be searched for the best one"),
        ({"params": {}}, "nothing to search; take search=lr"),
        ({"arguments": ["x=0.5", "rounds=2"]}, "nothing to search; take search=lr"),
        ({"params": {"experiment": "a,b"}}, "not of a table"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=line):
        search(tmp_path, parabola, **change)


def test_a_typed_key_is_searched_no_longer(tmp_path: Path) -> None:
    space = {"x": "interval(0.0, 1.0)", "y": "interval(0.0, 1.0)"}
    assert search(tmp_path, parabola, params=space, trials=2, arguments=["x=0.5"]) == [0.5, 0.5]


@pytest.mark.parametrize("space", ["lr", "fednh", "fedprox"])
def test_a_shipped_space_is_on_validation_data(space: str) -> None:
    config = compose(f"search={space}", *(["algorithm=fedavg"] if space == "lr" else []))
    assert config.objective == "validation/accuracy"
    assert config.data.validation > 0


TINY = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "rounds=1", "model=mlp"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300", *NO_PICTURES]
STUDY = ["-m", "hydra/sweeper=optuna", "search=fednh", "hydra.sweeper.n_trials=3", *TINY]


@pytest.mark.slow
def test_three_trials_on_digits(tmp_path: Path) -> None:
    done = fedexp(*STUDY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("multirun/*/*")
    assert len(list(folder.glob("*/summary.json"))) == 3
    assert (folder / "sweep.csv").exists()
    assert "Best of 3 trials: validation/accuracy=" in done.stdout
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}
    again = fedexp(*STUDY, "resume=auto", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    line = (
        "optimizer.lr=tag(log, interval(0.003, 0.3)): only lists of values can be swept; to search"
    )
    without = fedexp("-m", "search=fednh", *TINY, folder=tmp_path)
    assert without.returncode == 1
    assert without.stderr.startswith(f"fedexp: {line}")
