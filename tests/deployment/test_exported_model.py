import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from support.pages import blocks
from support.trained_runs import Trained, digits

import fedexp
from fedexp.data.preparations.rows import Rows
from fedexp.deployment.export import export
from fedexp.deployment.predictor import Predictor
from fedexp.errors import InputError

PAGE = Path(__file__).parents[2] / "docs/start/use_the_model.md"
PLAIN = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fedexp":
            raise ImportError("fedexp is blocked")
sys.meta_path.insert(0, Blocked())
import json, torch
found = {}
for name in sys.argv[1:]:
    extra = {"classes.json": "", "inputs.json": ""}
    program = torch.export.load(name + ".pt2", extra_files=extra).module()
    inputs = torch.load(name + ".pt")
    described = json.loads(extra["inputs.json"])
    assert str(inputs.dtype) == "torch." + described["dtype"]
    assert list(inputs.shape[1:]) == described["shape"][1:]
    rows = torch.cat([program(inputs[:1]), program(inputs[1:])])
    found[name] = rows.argmax(1).tolist(), json.loads(extra["classes.json"])
assert "fedexp" not in sys.modules
print(json.dumps(found))
"""
"""Loads each file NAME.pt2 by plain PyTorch and predicts the inputs in NAME.pt."""


@pytest.mark.slow
def test_plain_pytorch_predicts_as_the_run_scored(runs: dict[str, Trained], tmp_path: Path) -> None:
    for kind, run in runs.items():
        model = fedexp.load(run.folder)
        export(model, tmp_path / f"{kind}.pt2")
        torch.save(model.preparation.read(run.raw), tmp_path / f"{kind}.pt")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, *runs],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind, run in runs.items():
        predicted, classes = found[kind]
        assert (np.array(predicted) == run.labels).mean() == pytest.approx(run.accuracy), kind
        assert tuple(classes) == fedexp.load(run.folder).classes


def test_raw_tensors_are_what_people_have(runs: dict[str, Trained]) -> None:
    read = {kind: fedexp.load(run.folder).preparation.read(run.raw) for kind, run in runs.items()}
    assert read["images"].dtype == torch.uint8
    assert read["digits"].max() == 16  # pixels of scikit-learn's digits are 0 to 16
    assert read["text"][0].tolist() == [ord(letter) for letter in runs["text"].raw[0]]
    assert read["table"][:, 0].isnan().sum() == runs["table"].raw["mean radius"].isna().sum() > 0


def test_the_pages_recipe_for_a_table_gives_the_raw_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Categories are words and whole numbers; a column of numbers holds truth values."""
    monkeypatch.chdir(tmp_path)
    written = {"x": [0.5, None], "new": [True, False]}
    written |= {"word": ["b", None], "ward": [1, 2], "site": [1, None]}
    pd.DataFrame(written).to_csv("wine.csv", index=False)
    categories = {"word": ("a", "b"), "ward": ("1", "3"), "site": ("0", "1")}
    rows = Rows(("x", "new"), (0.0, 0.0), (1.0, 1.0), categories, "mean")
    given: list[torch.Tensor] = []

    def model(raw: torch.Tensor) -> torch.Tensor:
        given.append(raw)
        return raw

    recipe = next(each for each in blocks(PAGE, "python") if "read_csv" in each)
    names = {"extra": {"inputs.json": json.dumps(asdict(rows))}, "classes": "abcd", "model": model}
    exec(recipe, {"json": json, "torch": torch, **names})
    expected = torch.tensor([[0.5, 1, 1, 0, 1], [torch.nan, 0, -1, -1, -1]], dtype=torch.float64)
    torch.testing.assert_close(given[0], expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(given[0], rows.read(pd.read_csv("wine.csv")), equal_nan=True)


@pytest.mark.parametrize("known", [(), ("x",), ("x", "y")])
def test_a_table_with_few_categories_is_exported(tmp_path: Path, known: tuple[str, ...]) -> None:
    rows = Rows(("number",), (0.5,), (2.0,), {"kind": known}, "mean")

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1 + len(known), 2)

        def forward(self, raw: torch.Tensor) -> torch.Tensor:
            return self.layer(rows.prepare(raw)).softmax(dim=1)

    model = Predictor(cast(Any, Network().eval()), ("a", "b"), rows, "a model")
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    raw = torch.tensor([[0.5, -1], *([3.0, place] for place in range(len(known)))])
    torch.testing.assert_close(program(raw.double()), model.network(raw.double()))


def test_a_personal_model_is_exported_too(tmp_path: Path) -> None:
    run = digits(tmp_path, "algorithm=fedproto", "clients.per_round=4")
    model = fedexp.load(run.folder, client=2)
    export(model, tmp_path / "client.pt2")
    program = torch.export.load(tmp_path / "client.pt2").module()
    found = program(model.preparation.read(run.raw)).argmax(dim=1).numpy()
    assert (found == model.predict(run.raw).astype(int)).all()


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, runs: dict[str, Trained]) -> None:
    model = fedexp.load(runs["digits"].folder)
    with pytest.raises(InputError, match=r"^--to .*m\.onnx: should end in \.pt2"):
        export(model, tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"^--to .*m\.pt2: cannot be written"):
        export(model, tmp_path / "absent" / "m.pt2")

    def branches(z: torch.Tensor) -> torch.Tensor:
        return z if z.sum() > 0 else -z

    model.network.head.forward = branches  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"PyTorch cannot export this model .*; use fedexp\.load"):
        export(model, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
