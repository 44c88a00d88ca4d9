from pathlib import Path

import pytest
import torch

import fedexp
from fedexp.cli.export import main


def test_the_command_writes_a_file_or_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedexp.run(
        [
            f"hydra.run.dir={tmp_path / 'run'}",
            "rounds=1",
            "clients.count=4",
            "clients.per_round=2",
            "local.epochs=1",
            "tracking.wandb.mode=disabled",
        ]
    )
    file = tmp_path / "model.pt2"
    main([str(tmp_path / "run"), "--to", str(file)])
    assert "model.pt2: the final global model of" in capsys.readouterr().out
    assert torch.export.load(file).module()(torch.ones(3, 1, 8, 8)).shape == (3, 10)
    with pytest.raises(SystemExit, match=r"^fedexp-export: .*is no folder of a run"):
        main([str(tmp_path), "--to", str(file)])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "run"), "--to", str(file), "--client", "1", "--model", "best"])
    assert "not allowed with" in capsys.readouterr().err
