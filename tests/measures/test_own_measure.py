"""A measure from outside the package: one file and one YAML, known to all that follows."""

import json
from pathlib import Path

import pytest

import fedexp
from fedexp.reporting.report import Report
from fedexp.testing import check_measure

MODULE = '''
from matplotlib.figure import Figure
from pydantic import PositiveInt

from fedexp.measures.measure import Measure, Measured, every_nth


class Drift(Measure):
    """``drift/length``: the length of the global model's last step."""

    headlines = {"drift/length": "lower"}

    def __init__(self, every: PositiveInt) -> None:
        self.every = every

    def due(self, round, rounds):
        return every_nth(round, rounds, self.every)

    def begin_round(self, message):
        self._start = {name: weight.clone() for name, weight in message.weights.items()}

    def __call__(self, after):
        squares = ((after.message.weights[n] - w).square().sum() for n, w in self._start.items())
        length = float(sum(squares)) ** 0.5
        figure = Figure(figsize=(1, 1))
        figure.add_subplot().bar(["step"], [length])
        return Measured({"drift/length": length}, figures={"drift": figure})
'''


@pytest.fixture
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for ``--config-dir``; the module beside it can be imported."""
    (tmp_path / "outside_measures.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "conf"
    (folder / "measure").mkdir(parents=True)
    node = "drift:\n  _target_: outside_measures.Drift\n  every: 5\n"
    (folder / "measure" / "drift.yaml").write_text(node)
    return folder


def test_its_metric_and_its_figure_are_known(config_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["algorithm=fedavg", "rounds=3", "clients.count=4", "clients.per_round=2"]
    small += ["local.epochs=1", "data.subset=100", "tracking.wandb.mode=disabled"]
    own = ["+measure=drift", "measure.drift.every=2", "objective=drift/length"]
    result = fedexp.run([*small, *own, f"hydra.run.dir={run}"], config_dir=config_dir)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lengths = [line.get("drift/length") for line in lines]
    assert lengths[0] is None
    assert lengths[1] > 0 < lengths[2]
    assert result.objective("drift/length") == lengths[2]
    statistics = result.summary["metrics"]["drift/length"]
    assert statistics["final"] == lengths[2]
    assert statistics["best"] == min(lengths[1:])
    assert json.loads((run / "run.json").read_text())["headlines"]["drift/length"] == "lower"
    figures = {path.name for path in (run / "figures").glob("drift*")}
    assert figures == {"drift_0002.png", "drift_0003.png"}
    assert "drift/length" in Report.read(run, metrics=["drift/length"]).metrics


def test_it_keeps_the_contract(config_dir: Path) -> None:
    check_measure("+measure=drift", "measure.drift.every=1", config_dir=config_dir)
