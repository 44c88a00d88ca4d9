"""``fedexp.load`` with files from elsewhere: one line, and no answer from a broken model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trained_runs import Trained

import fedexp
from fedexp.cli import export
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.state.files import digest


@pytest.fixture
def copy(runs: dict[str, Trained], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["digits"].folder, tmp_path / "run"))


def line(folder: Path, **arguments: str | int) -> str:
    with pytest.raises(InputError) as caught:
        fedexp.load(folder, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_list_is_no_model(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = copy / "checkpoints" / "final.pt"
    torch.save([torch.ones(2)], weights)
    said = line(copy)
    assert said.startswith(f"{weights}: is not a state dict (names and tensors")
    with pytest.raises(SystemExit) as ended:
        export.main([str(copy), "--to", str(copy / "model.pt2")])
    assert str(ended.value) == f"fedexp-export: {said}"


def all_nan(state: Tensors) -> Tensors:
    return {name: torch.full_like(each, torch.nan) for name, each in state.items()}


def one_inf(state: Tensors) -> Tensors:
    name = next(name for name in state if name.startswith("backbone."))
    state[name].view(-1)[0] = torch.inf
    return state


@pytest.mark.parametrize("broken", [all_nan, one_inf])
@pytest.mark.parametrize("model", ["final", "best"])
def test_a_model_of_nan_is_refused(
    copy: Path, broken: Callable[[Tensors], Tensors], model: str
) -> None:
    weights = copy / "checkpoints" / f"{model}.pt"
    torch.save(broken(torch.load(weights)), weights)
    assert line(copy, model=model).startswith(f"{weights}: backbone.")
    assert "holds NaN or Inf" in line(copy, model=model)


@pytest.mark.parametrize("name", ["../../other/checkpoints/final", "/tmp/final", "..", "", "a\0b"])
def test_a_model_outside_the_folder_is_no_model_of_the_run(copy: Path, name: str) -> None:
    other = copy.parent / "other" / "checkpoints"
    other.mkdir(parents=True)
    shutil.copy(copy / "checkpoints" / "final.pt", other)
    assert line(copy, model=name).endswith("; models of this run: best, final")


def test_inputs_of_nan_get_no_answer(runs: dict[str, Trained]) -> None:
    model, raw = fedexp.load(runs["digits"].folder), runs["digits"].raw[:3].copy()
    raw[1, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"^predict: .* gives no probabilities for input 1: they"):
        model.predict(raw)


def test_a_partition_of_other_classes_does_not_count(copy: Path) -> None:
    (copy / "partition.csv").write_text("client,a\n0,1\n1,2\n2,3\n3,4\n")
    assert len(fedexp.load(copy).classes) == 10


@pytest.mark.parametrize("content", ["", "[]", "{", '{"config": []}', "[" * 100_000])
@pytest.mark.parametrize("name", ["run.json", "data.json"])
def test_texts_from_elsewhere(copy: Path, name: str, content: str) -> None:
    (copy / name).write_text(content)
    for identity in copy.glob("checkpoints/*/identity.json"):
        identity.unlink()
    assert name in line(copy)


@pytest.mark.parametrize("content", [[1], {"personal_model": [torch.ones(2)]}, {}])
def test_a_personal_model_of_something_else(copy: Path, content: object) -> None:
    (newest,) = copy.glob("checkpoints/round_*")
    manifest = json.loads((newest / "checkpoint.json").read_text())
    path = newest / "clients" / "0.pt"
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)
    manifest["files"]["clients/0.pt"] = digest(path.read_bytes())
    (newest / "checkpoint.json").write_text(json.dumps(manifest))
    assert line(copy, client=0).startswith(f"{path}: is not a state dict")
    path.write_bytes(b"")
    assert line(copy, client=0) == f"{path}: cannot be read (it has changed)"
