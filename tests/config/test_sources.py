"""The source files of the classes that a config names."""

import hashlib
from pathlib import Path

import pytest

from fedexp.config.sources import source_code, targets

OWN = {
    "own_method/__init__.py": "from own_method.scale import SCALE\n",
    "own_method/scale.py": "SCALE = 2.0\n",
    "own_method/unused.py": "raise RuntimeError\n",
    "own_method/loss.py": (
        "from fedexp.losses.cross_entropy import CrossEntropy\nfrom . import scale\n"
        "class Scaled(CrossEntropy):\n    def forward(self, batch):\n"
        "        return scale.SCALE * super().forward(batch)\n"
    ),
}


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in OWN.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_own_code_is_kept_with_what_it_imports_and_without_its_folder(own_method: Path) -> None:
    found = source_code({"loss": {"_target_": "own_method.loss.Scaled"}})
    kept = {name: text for name, text in OWN.items() if "unused" not in name}
    assert found.own == kept
    inherited = {"fedexp/losses/cross_entropy.py", "fedexp/core/part.py"}
    assert {*kept, *inherited} <= {*found.parts["loss"]}
    content = OWN["own_method/loss.py"].encode()
    assert found.files["own_method/loss.py"] == hashlib.sha256(content).hexdigest()
    assert str(own_method) not in str(found)


def test_of_fedexp_and_of_libraries_there_is_no_text() -> None:
    config = {
        "head": {"_target_": "fedexp.heads.etf.ETF"},
        "model": {"_target_": "torchvision.models.resnet18"},
        "measure": {"a": {"_target_": "fedexp.measures.cost.Cost"}},
    }
    found = source_code(config)
    assert found.own == {}
    assert found.libraries == ("torchvision",)
    assert found.parts["model"] == []
    assert "fedexp/measures/cost.py" in found.parts["measure.a"]


def test_what_only_records_is_no_part() -> None:
    config = {
        "tracking": {"trackers": {"a": {"_target_": "mine.Tracker"}}},
        "loss": {"_target_": "a.B", "terms": [{"_target_": "c.D"}]},
    }
    assert targets(config) == {"loss": "a.B", "loss.terms.0": "c.D"}
