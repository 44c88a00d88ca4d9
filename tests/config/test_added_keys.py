"""Runs of earlier versions, whose saved configs lack later keys, load and go on."""

import json
from pathlib import Path

import torch

import fedexp
from fedexp.config.added_keys import ADDED, REMOVED, with_added

TINY = ["algorithm=fedavg", "data.subset=300", "local.epochs=1", "checkpoint.every=1"]


def test_only_absent_keys_are_added() -> None:
    saved = {"local": {"epochs": 1}, "tracking": {"wandb": {"dir": "/scratch"}}, "seed": 3}
    found = with_added(saved)
    assert found["local"] == {"epochs": 1, "last_batch": "auto"}
    assert found["tracking"]["wandb"] == {"dir": "/scratch", "notes": None, "id": None}
    assert saved["local"] == {"epochs": 1}
    assert with_added({"local": "damaged"}) == {"local": "damaged"}
    saved = {"evaluation": {"batch_size": 9, "overlap": True}}
    assert with_added(saved) == {"evaluation": {"batch_size": 9}}
    assert saved["evaluation"]["overlap"]


def _as_of_an_older_run(path: Path) -> None:
    saved = json.loads(path.read_text())
    for key in ADDED:
        *groups, name = key.split(".")
        node = saved["config"]
        for group in groups:
            node = node[group]
        del node[name]
    for key in REMOVED:
        group, name = key.split(".")
        saved["config"][group][name] = False
    path.write_text(json.dumps(saved))


def test_an_older_run_loads_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, older = tmp_path / "whole", tmp_path / "older"
    expected = fedexp.run([*TINY, "rounds=2", f"hydra.run.dir={whole}"])
    fedexp.run([*TINY, "rounds=1", f"hydra.run.dir={older}"])
    _as_of_an_older_run(older / "run.json")
    overrides = older / ".hydra/overrides.yaml"
    overrides.write_text(overrides.read_text() + "- evaluation.overlap=false\n")
    fedexp.load(older)
    found = fedexp.run([*TINY, "rounds=2", f"resume={older}", f"hydra.run.dir={older}"])
    assert found.summary["weights_digest"] == expected.summary["weights_digest"]
    assert torch.equal(
        *(
            torch.load(each / "checkpoints/final.pt")["head.linear.weight"]
            for each in (whole, older)
        )
    )


def test_an_argument_is_added_to_its_class_only() -> None:
    digits, other = "fedexp.data.readers.digits.Digits", "fedexp.data.readers.text.Text"
    found = with_added({"data": {"_target_": digits}, "measure": {"a": {"_target_": other}}})
    assert found["data"] == {"_target_": digits, "split_seed": 0}
    assert found["measure"] == {"a": {"_target_": other}}
    assert with_added({"data": {"_target_": digits, "split_seed": 3}})["data"]["split_seed"] == 3
