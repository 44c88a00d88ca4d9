"""A tiny factorial experiment from the command to its table."""

import re
from pathlib import Path

import pandas as pd
import pytest
from support.command_line import fedexp

from fedexp.cli.report import main

PRESET = """
# @package _global_
defaults:
  - /experiment/leaderboard/digits_dir005
rounds: 1
data:
  subset: 300
hydra:
  sweeper:
    params: {algorithm: fedavg, local.epochs: 1, seed: "0,1"}
    factorial:
      factors:
        head: [{head: linear}, {head: prototype}]
    tune:
      seed: "900,901"
      statistic: mean_last5
      budgets: [2]
      common: {optimizer.lr: 0.1}
"""
TINY = ["-m", "--config-dir=own", "experiment=mine"]


@pytest.mark.slow
def test_trials_then_seeds_then_further_seeds_with_the_same_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(PRESET)
    first = fedexp(*TINY, "hydra.sweep.dir=first", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    size = "fedexp: factorial: head; 2 of 2 combinations; 8 trials and 4 runs of 1 rounds\n"
    assert size in first.stderr
    assert re.search(r"fedexp: about \d+ s if .*: with most levels low \d", first.stderr)
    assert "fedexp: first 8 trials of settings\n" in first.stderr
    assert "fedexp-report first --factorial --to DIR" in first.stdout
    earlier = "hydra.sweeper.tune.earlier=[first]"
    later = fedexp(*TINY, "seed=2", earlier, "hydra.sweep.dir=later", folder=tmp_path)
    assert later.returncode == 0, later.stderr
    assert "fedexp: first 0 trials of settings\n" in later.stderr
    main([str(tmp_path / each) for each in ("first", "later")] + OPTIONS + [str(tmp_path / "to")])
    assert capsys.readouterr().err == ""
    runs = pd.read_csv(tmp_path / "to" / "runs.csv").fillna("")
    assert runs["seed"].tolist() == [0, 1, 2, 0, 1, 2]
    assert runs.groupby("combination")["setting"].nunique().tolist() == [1, 1]
    chosen = pd.read_csv(tmp_path / "to" / "chosen.csv").fillna("")
    assert set(chosen["setting"]) == set(runs["setting"])


OPTIONS = ["--factorial", "--statistic", "mean_last5", "--to"]


@pytest.mark.slow
def test_a_wrong_design_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    wrong = PRESET.replace("[{head: linear}, {head: prototype}]", "[{head: linear}]")
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(wrong)
    done = fedexp(*TINY, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("fedexp: hydra.sweeper.factorial.factors.head=[{'head': 'linear'")
    assert done.stderr.count("\n") == 1
