"""A run that ends in its middle and goes on ends with the same bits."""

from pathlib import Path
from typing import Any

import pytest

import fedexp
from fedexp.runtime.federation import Federation
from support.short_runs import NO_PICTURES, outcome

TINY = ["rounds=3", "clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=120"]
TINY += ["checkpoint.every=1", "tracking.wandb.mode=disabled", "tracking.progress=false"]
TINY += NO_PICTURES


def check_resumes_to_the_bit(tmp_path: Path, *overrides: str) -> None:
    """Three rounds in one go, and two and one more, give the same weights and numbers."""
    whole, stopped = ([f"hydra.run.dir={tmp_path / name}", *TINY, *overrides] for name in "ab")
    fedexp.run(whole)
    run_round = Federation.run_round

    def dies(self: Federation, round: int) -> Any:
        if round == 3:
            raise RuntimeError("power cut")
        return run_round(self, round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "run_round", dies)
        with pytest.raises(RuntimeError, match="power cut"):
            fedexp.run(stopped)
    fedexp.run([*stopped, f"resume={tmp_path / 'b'}"])
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
