"""The same config on nodes and in the simulator: the final weights are equal to the bit."""

import json
import re
from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from support.fake_grid import DIGITS, FAST, FakeGrid, bundle, changed, run

import fedexp
from fedexp.deployment.flower.letters import Answer
from fedexp.errors import InputError

METHODS = {
    "fedavg": ["algorithm=fedavg"],
    "fednh": ["algorithm=fednh"],
    "fedgela": ["algorithm=fedgela"],
    "fedsc": ["algorithm=fedsc"],
    "scaffold": ["algorithm=scaffold"],
    "fedptr": ["algorithm=fedptr", *FAST["fedptr"]],
    "hics": ["algorithm=fedavg", "sampler=hics", "aggregator=uniform"],
    "power_of_choice": ["algorithm=fedavg", "sampler=power_of_choice", "aggregator=uniform"],
    "fedrep": ["algorithm=fedrep"],
    "apple": ["algorithm=apple"],
    "fedamp": ["algorithm=fedamp"],
    "fedfomo": ["algorithm=fedfomo"],
    "pfedsim": ["algorithm=pfedsim"],
    "fedcac": ["algorithm=fedcac"],
    "fedphp": ["algorithm=fedphp"],
    "fedsr": ["algorithm=fedsr"],
    "feddbe": ["algorithm=feddbe"],
    "fedap": ["algorithm=fedap", "model.batch_norm=true"],
    "fedmtl": ["algorithm=fedmtl"],
    "pfedhn": ["algorithm=pfedhn"],
    "pfedla": ["algorithm=pfedla"],
    "pfedfda": ["algorithm=pfedfda"],
    "pfl_da": ["algorithm=pfl_da"],
    "floco": ["algorithm=floco"],
    "fedcp": ["algorithm=fedcp"],
    "fedpcl": ["algorithm=fedpcl"],
    "adcol": ["algorithm=adcol", "loss.hidden=16"],
    "metafed": ["algorithm=metafed"],
    "fedkd": ["algorithm=fedkd", "compression=none", "compression@download=none"],
    "synthetic": ["data=synthetic", "data.subset=null", "data.size_max=80"],
    "finetune_best": [
        *["algorithm=fedavg", "personalization=finetune_best", "personalization.epochs=1"],
        *["measure.personal.of=cohort", "optimizer.lr=0.3"],  # round 2 is the best of three
    ],
}
ASKS_CLASSES = ["algorithm=fedavg", "aggregator=disco", "aggregator.target=population"]
NEED_CLASS_COUNTS = r"geometry/.*_angle_global_(existing|missing)|sampler/entropy_spearman"
"""Metrics that the server of a federation does not have, because it knows no class counts."""


@pytest.mark.matrix
@pytest.mark.parametrize("name", METHODS)
def test_equals_the_simulator(name: str, tmp_path: Path) -> None:
    words = METHODS[name]
    grid = FakeGrid(bundle(tmp_path, *words), tmp_path / "states")
    on_nodes = run(grid, tmp_path / "runs")
    simulated = fedexp.run([*DIGITS, *words, f"hydra.run.dir={tmp_path}/simulated"])
    assert on_nodes.summary["weights_digest"] == simulated.summary["weights_digest"]
    missing = set(simulated.metrics) - set(on_nodes.metrics)
    assert all(re.fullmatch(NEED_CLASS_COUNTS, metric) for metric in missing)
    same = [c for c in on_nodes.metrics if not c.startswith("time/")]
    assert on_nodes.metrics[same].equals(simulated.metrics[same])
    assert "query.classes" not in grid.sent


@pytest.mark.slow
def test_class_counts_are_asked_for_only_if_a_part_needs_them(tmp_path: Path) -> None:
    grid = FakeGrid(bundle(tmp_path, *ASKS_CLASSES), tmp_path / "states")
    on_nodes = run(grid, tmp_path / "runs")
    simulated = fedexp.run([*DIGITS, *ASKS_CLASSES, f"hydra.run.dir={tmp_path}/simulated"])
    assert on_nodes.summary["weights_digest"] == simulated.summary["weights_digest"]
    assert [client for kind, client in grid.log if kind == "query.classes"] == [0, 1, 2, 3]


def test_class_counts_of_different_lengths_are_refused(tmp_path: Path) -> None:
    grid = FakeGrid(bundle(tmp_path, *ASKS_CLASSES), tmp_path / "states")

    def shortened(kind: str, round: int, client: int, reply: RecordDict) -> RecordDict:
        if (kind, client) == ("query.classes", 2):
            return changed(reply, Answer, tensors=lambda sent: {"counts": merged(sent["counts"])})
        return reply

    def merged(counts: torch.Tensor) -> torch.Tensor:
        return torch.cat((counts[:-2], counts[-2:].sum(dim=0, keepdim=True)))

    grid.change = shortened
    with pytest.raises(InputError, match=r"^class counts: the clients have different numbers"):
        run(grid, tmp_path / "runs")


@pytest.mark.slow
def test_the_noise_of_privacy_does_not_follow_from_the_seed(tmp_path: Path) -> None:
    grid = FakeGrid(bundle(tmp_path, "algorithm=fedavg", "aggregator=private"), tmp_path / "states")
    digests = {run(grid, tmp_path / str(i)).summary["weights_digest"] for i in range(2)}
    assert len(digests) == 2


def test_the_bytes_of_records_are_those_that_are_counted_and_some_names(tmp_path: Path) -> None:
    words = ["algorithm=scaffold", "measure.personal=null"]
    grid = FakeGrid(bundle(tmp_path, *words), tmp_path / "states")
    found = run(grid, tmp_path / "runs").metrics
    counted = found[["cost/download_bytes", "cost/upload_bytes"]].sum()
    trained = sum(kind == "train" for kind, _ in grid.log)
    for sent, number in ((grid.sent, counted.iloc[0]), (grid.received, counted.iloc[1])):
        assert number < sent["train"] < number + 2000 * trained


def test_own_data(tmp_path: Path) -> None:
    """With ``--own-data`` each node has the whole dataset that it reads."""
    module = bundle(tmp_path, "algorithm=fedavg", "partition=iid", "--own-data")
    grid = FakeGrid(module, tmp_path / "states", key="client")
    assert run(grid, tmp_path / "runs").summary["rounds"] == 3
    record = next((tmp_path / "runs").glob("*/*/federation.json"))
    assert json.loads(record.read_text())["sizes"] == dict.fromkeys("0123", 300)


def test_an_exception_in_a_part_names_client_and_round(tmp_path: Path) -> None:
    words = ["algorithm=fedavg", "loss._target_=support.contract_breakers.Failing"]
    grid = FakeGrid(bundle(tmp_path, *words), tmp_path / "states")
    with pytest.raises(IndexError) as error:
        run(grid, tmp_path / "runs")
    (note,) = error.value.__notes__
    assert re.fullmatch(r"while training client \d in round 1, in loss \(.*Failing\)", note)
