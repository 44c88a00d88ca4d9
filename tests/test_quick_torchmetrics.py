"""Importing the package takes torchmetrics only as far as Lightning needs it."""

import json
import subprocess
import sys

import pytest

from fedexp import quick_torchmetrics

PROGRAM = """
import json, sys
import fedexp.runtime.execution
slow = [name for name in NAMES if name in sys.modules]
import torchmetrics, torchmetrics.metric
from lightning.pytorch.core import module
same = torchmetrics.Metric is torchmetrics.metric.Metric is module.Metric
quick = "torchmetrics.classification" not in sys.modules
missing = hasattr(torchmetrics, "__nothing__"), hasattr(torchmetrics, "nothing")
from torchmetrics import Accuracy
from torchmetrics.classification import MulticlassAccuracy
import torchmetrics.functional.classification
made = type(Accuracy(task="multiclass", num_classes=3)) is MulticlassAccuracy
still = torchmetrics.Metric is module.Metric and issubclass(MulticlassAccuracy, module.Metric)
print(json.dumps([slow, same, quick, missing, made, still, torchmetrics.__version__[0]]))
"""


def test_what_is_slow_and_not_needed_is_not_imported_and_the_rest_is_as_ever() -> None:
    names = ["torchvision", "transformers", "scipy.signal", "pandas", "sklearn.metrics", "wandb"]
    program = PROGRAM.replace("NAMES", json.dumps(names))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], True, True, [False, False], True, True, "1"]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, quick_torchmetrics._Finder)]


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_imported_already_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", sys)
    before = list(sys.meta_path)
    quick_torchmetrics.install()
    assert sys.meta_path == before
    monkeypatch.delitem(sys.modules, "torchmetrics")
    quick_torchmetrics.install()
    quick_torchmetrics.install()
    assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path[0].find_spec("json", None) is None  # type: ignore[attr-defined]
