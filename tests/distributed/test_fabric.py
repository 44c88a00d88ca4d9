import os
from pathlib import Path

import pytest
from support.federations import compose, federate

from fedexp.distributed.fabric import cpu_fabric, make_fabric


@pytest.mark.filterwarnings("error")
def test_a_machine_with_slurm_gives_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for fabric in (cpu_fabric(), make_fabric(compose().engine)):
        assert fabric.world_size == 1
    federation = federate("data.subset=200", "clients.count=4", "clients.per_round=1")
    assert federation is not None
