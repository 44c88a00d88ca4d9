"""The sentence about how the clients of each method train."""

from pathlib import Path

from support.run_files import accuracies, write_run

from fedexp.reporting.local_training import local_training
from fedexp.reporting.report import Report
from fedexp.reporting.runs import read_run

SGD = {"_target_": "torch.optim.SGD", "lr": 0.02, "momentum": 0.9}
PLAIN = SGD | {"lr": 0.05, "momentum": 0}


def test_each_setting_is_named_with_its_methods(tmp_path: Path) -> None:
    for name, optimizer, values, clip in (
        ("fedavg", "sgd", SGD, None),
        ("fednh", "sgd", SGD, 10),
        ("scaffold", "sgd_plain", PLAIN, None),
    ):
        choices, local = {"optimizer": optimizer}, {"epochs": 1, "grad_clip": clip}
        word, history = [f"algorithm={name}"], accuracies(0.5)
        write_run(tmp_path / name, word, history, choices=choices, optimizer=values, local=local)
    made = Report.read([tmp_path / name for name in ("fedavg", "fednh", "scaffold")])
    sgd = "optimizer=sgd lr=0.02 momentum=0.9"
    plain = "optimizer=sgd_plain lr=0.05 momentum=0 (scaffold)"
    line = f"Local training: {sgd} (fedavg); {sgd} local.grad_clip=10 (fednh); {plain}."
    assert line in made.tables()[0].notes
    runs = [read_run(tmp_path / "fedavg")]
    assert local_training(runs, []) == f"Local training: {sgd}."
    assert local_training(runs, ["optimizer.lr"]) == "Local training: optimizer=sgd momentum=0.9."
