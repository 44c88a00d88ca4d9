"""Who started this process, by environment variables as torchrun and SLURM set them."""

import os
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from support.federations import compose

from fedexp.config.schema import Engine
from fedexp.distributed.launcher import ProcessInfo, must_spawn, this_process
from fedexp.errors import InputError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "123456",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "node[0-1]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = BATCH_SCRIPT | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
IN_SALLOC = {name: value for name, value in SRUN.items() if name != "SLURM_NTASKS_PER_NODE"}
IN_SALLOC["SLURM_JOB_NAME"] = "interactive"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *SRUN, *IN_SALLOC):
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def engine(devices: int, num_nodes: int = 1, processes_per_device: int = 1) -> Engine:
    return compose(
        *["engine.device=cpu", f"engine.devices={devices}", f"engine.num_nodes={num_nodes}"],
        f"engine.processes_per_device={processes_per_device}",
    ).engine


def test_by_the_user() -> None:
    assert this_process() == ProcessInfo("user", 0, 1)
    assert not must_spawn(engine(1))
    assert must_spawn(engine(2))
    assert must_spawn(engine(1, processes_per_device=2))


@pytest.mark.parametrize(("variables", "by"), [(TORCHRUN, "torchrun"), (SRUN, "srun")])
def test_as_one_of_four_on_two_machines(
    variables: dict[str, str], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    assert (this_process().started_by, this_process().rank, this_process().size) == (by, 3, 4)
    assert not must_spawn(engine(2, num_nodes=2))
    assert not must_spawn(engine(1, num_nodes=2, processes_per_device=2))
    with pytest.raises(InputError, match=f"engine.devices=1 .*: {by} has started 4 .*, not 1"):
        must_spawn(engine(1))


def test_a_batch_script_in_an_allocation_has_started_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_all(monkeypatch, BATCH_SCRIPT)
    assert this_process() == ProcessInfo("user", 0, 1)
    assert must_spawn(engine(4))


def test_several_machines_need_somebody_on_each() -> None:
    with pytest.raises(InputError, match=r"num_nodes=2: .*torchrun.*srun"):
        must_spawn(engine(1, num_nodes=2))


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        (TORCHRUN, TorchElasticEnvironment),
        (SRUN, SLURMEnvironment),
        (IN_SALLOC, SLURMEnvironment),
    ],
)
def test_lightning_reads_the_same_rank(
    variables: dict[str, str], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not warn or refuse, where it would guess from a job's name how it was started."""
    from fedexp.distributed.fabric import _environment

    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    set_all(monkeypatch, variables)
    found = _environment(processes=4)
    assert isinstance(found, kind)
    assert (found.global_rank(), found.world_size()) == (3, 4)
    assert (found.local_rank(), found.node_rank()) == (1, 1)
    assert found.main_address == "node0"


def test_one_process_in_an_allocation_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning by itself would take it for one of the allocation's four tasks."""
    from fedexp.distributed.fabric import make_fabric

    set_all(monkeypatch, BATCH_SCRIPT)
    assert make_fabric(engine(1)).world_size == 1
