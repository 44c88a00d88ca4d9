import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trained_runs import Trained, digits

import fedexp
from fedexp.errors import InputError

METHODS = {
    "fedrod": ["algorithm=fedrod", "data.validation=0.2"],
    "fedproto": ["algorithm=fedproto"],
    "fedgela": ["algorithm=fedgela"],
    "mixed": ["algorithm=fedproto", "model=mixed", "model.groups.large.model.width=4"],
}


@pytest.mark.parametrize("kind", ["digits", "table", "images", "text"])
def test_a_loaded_model_scores_raw_inputs_as_the_run_did(
    runs: dict[str, Trained], kind: str
) -> None:
    run = runs[kind]
    model = fedexp.load(run.folder)
    probabilities = model.predict_proba(run.raw, batch_size=7)
    assert probabilities.shape == (len(run.labels), len(model.classes))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=1) == run.labels).mean() == pytest.approx(run.accuracy)
    named = np.array(model.classes)[run.labels]
    assert (model.predict(run.raw) == named).mean() == pytest.approx(run.accuracy)


def test_the_best_model_in_validation_is_kept(runs: dict[str, Trained]) -> None:
    run = runs["digits"]
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: row["validation/accuracy"])
    model = fedexp.load(run.folder, "best")
    accuracy = (model.predict(run.raw).astype(int) == run.labels).mean()
    assert accuracy == pytest.approx(best["global/accuracy"])
    with pytest.raises(InputError, match=r"has no model best; models of this run: final; data\."):
        fedexp.load(runs["table"].folder, "best")


@pytest.mark.matrix
@pytest.mark.parametrize("method", METHODS)
def test_a_clients_personal_model_scores_as_in_the_run(tmp_path: Path, method: str) -> None:
    kept = ["measure.personal.kinds=[local,whole]", "clients.per_round=4"]
    run = digits(tmp_path, *METHODS[method], *kept)
    scores = [
        (fedexp.load(run.folder, client=client).predict(run.raw).astype(int) == run.labels).mean()
        for client in range(4)
    ]
    assert len(set(scores)) > 1
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert np.mean(scores) == pytest.approx(last["personal/accuracy_whole"], abs=1e-3)


def test_files_and_libraries_of_training_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Initial weights, devices, times of availability, Flower's partitions, an own measure."""
    first = digits(tmp_path, "algorithm=fedavg")
    (tmp_path / "second").mkdir()
    start, devices, times = (tmp_path / name for name in ("start.pt", "devices.csv", "times.csv"))
    shutil.copy(first.folder / "checkpoints" / "final.pt", start)
    devices.write_text("samples_per_second,download,upload,latency\n1,1e6,1e6,0\n")
    times.write_text("client,from,to\n" + "".join(f"{client},0,100\n" for client in range(4)))
    library = "flwr_datasets.partitioner"
    measure = tmp_path / "my_measure.py"
    measure.write_text("from fedexp.measures.training import Training as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = digits(
        tmp_path / "second",
        *("algorithm=fedavg", f"model.start_from={start}"),
        *("system=table", f"system.file={devices}", "sampler=oort"),  # which needs devices
        *("availability=trace", f"availability.file={times}"),
        *("partition=flwr", f"partition.partitioner._target_={library}.IidPartitioner"),
        *("+measure.mine._target_=my_measure.Mine", "~measure.training", "objective=train/loss"),
    )
    for path in (start, devices, times, measure):
        path.unlink()
    for name in (library, "my_measure"):
        monkeypatch.setitem(sys.modules, name, None)
    found = fedexp.load(run.folder).predict(run.raw).astype(int)
    assert (found == run.labels).mean() == pytest.approx(run.accuracy)


def test_what_cannot_be_loaded_is_one_line(runs: dict[str, Trained], tmp_path: Path) -> None:
    run = runs["digits"].folder
    for arguments, message in (
        ({"run": tmp_path}, "is no folder of a run; it has no run.json"),
        ({"run": run, "client": 4}, "client=4: the run has the clients 0 to 3"),
        ({"run": run, "model": "worst"}, "has no model worst; models of this run: best, final"),
    ):
        with pytest.raises(InputError, match=message):
            fedexp.load(**arguments)  # type: ignore[arg-type]
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    weights = copy / "checkpoints" / "final.pt"
    state = torch.load(weights)
    name = next(name for name in state if name.startswith("backbone."))
    torch.save(state | {name: torch.ones(2)}, weights)
    with pytest.raises(InputError, match=r"do not fit the model .* is \[2\] in the file"):
        fedexp.load(copy)
    torch.save({"code": Path}, weights)
    with pytest.raises(InputError, match=r"final\.pt: cannot be read"):
        fedexp.load(copy)
    (copy / "data.json").write_text('{"description": {}}')
    with pytest.raises(InputError, match=r"data\.json: cannot be read"):
        fedexp.load(copy)
    (copy / "data.json").unlink()
    with pytest.raises(InputError, match=r"has no data\.json; the run is of an older version"):
        fedexp.load(copy)


def test_a_method_without_such_a_model_says_so(tmp_path: Path) -> None:
    local = digits(tmp_path, "algorithm=local")
    with pytest.raises(InputError, match="has no global model; name a client"):
        fedexp.load(local.folder)
    assert len(fedexp.load(local.folder, client=_trained(local)).classes) == 10
    (tmp_path / "tuned").mkdir()
    tuned = digits(tmp_path / "tuned", "algorithm=fedavg", "personalization=finetune")
    with pytest.raises(InputError, match=r"client=0: this method tunes a personal model"):
        fedexp.load(tuned.folder, client=0)


def _trained(run: Trained) -> int:
    """A client that has taken part."""
    newest = max((run.folder / "checkpoints").glob("round_*"))
    return int(next((newest / "clients").glob("*.pt")).stem)
