"""A sweep's values of group keys are checked in its jobs."""

import errno
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedexp.cli.command import config_folder
from fedexp.cli.sweeps import check_in_jobs, save_sweep, sweep_name

CONF = Path(config_folder())


def changed(*arguments: str) -> list[str]:
    return check_in_jobs(arguments, CONF)


@pytest.mark.parametrize("flag", ["-m", "--multirun", "--multi"])
def test_a_value_of_a_group_is_checked_in_the_jobs(flag: str) -> None:
    typed = [flag, "algorithm=fedprox,feddyn", "regularizer.mu=0.1", "data.root='a b'"]
    assert changed(*typed) == [
        *(flag, "algorithm=fedprox,feddyn"),
        *("regularizer.mu=choice(0.1)", "data.root=choice('a b')"),
    ]


def test_a_value_of_the_download_is_checked_in_the_jobs() -> None:
    typed = [flag := "-m", swept := "compression@download=topk,randk", "download.share=0.1"]
    assert changed(*typed) == [flag, swept, "download.share=choice(0.1)"]


@pytest.mark.parametrize(
    "typed",
    [
        "rounds=9",
        "resume=auto",
        "limits.minutes=5",  # of no group
        "head.rho=0.1,0.9",  # a sweep already
        "head=etf",
        "hydra.sweep.dir=x",
        "+head.rho=1",
        "~head.rho",
        "head.rho=",
        "--config-dir=a.b",
        "head.rho=[1",
    ],
)
def test_other_arguments_are_left_as_they_are(typed: str) -> None:
    assert changed("-m", typed) == ["-m", typed]


def test_without_m_and_with_another_sweeper_nothing_changes() -> None:
    assert changed("regularizer.mu=0.1") == ["regularizer.mu=0.1"]
    other = ["-m", "hydra/sweeper=optuna", "regularizer.mu=0.1"]
    assert changed(*other) == other


@pytest.mark.parametrize(
    ("overrides", "params", "name"),
    [
        (
            ["algorithm=fedavg,fednh", "partition.beta=0.1,1", "rounds=9"],
            {},
            "algorithm partition.beta",
        ),
        (["regularizer.mu=choice(0.1)", "seed=0,1", "head=etf,linear"], {}, "head"),
        (["seed=0,1"], {}, "seed"),
        (["algorithm=glob(fed*)", "seed=shuffle(1,2)"], {}, "algorithm"),
        (["optimizer.lr=interval(0.01,1)"], {}, "optimizer.lr"),
        (
            ["local.epochs=range(1,4,step=0)", "rounds=tag(a,choice(1,2))"],
            {},
            "local.epochs rounds",
        ),
        (
            [f"model.a{i}=1,2" for i in range(30)],
            {},
            " ".join(f"model.a{i}" for i in range(10)) + " ...",
        ),
        (["experiment=fednh/table1", "seed=0"], {"experiment": "a,b"}, "fednh/table1"),
    ],
)
def test_a_sweep_is_named_by_what_is_swept(
    overrides: list[str], params: dict[str, str], name: str, tmp_path: Path
) -> None:
    choices = dict(each.split("=") for each in overrides if each.startswith("experiment="))
    hydra = {
        "overrides": {"task": overrides},
        "runtime": {"choices": choices},
        "sweeper": {"params": params},
    }
    OmegaConf.save({"hydra": hydra}, tmp_path / "multirun.yaml")
    assert sweep_name(tmp_path) == f"{name} {tmp_path.name}"


def test_a_sweep_whose_file_is_lost_has_the_name_of_its_folder(tmp_path: Path) -> None:
    assert sweep_name(tmp_path) == tmp_path.name


def test_a_quoted_number_stays_a_text_in_the_jobs() -> None:
    typed = ["-m", "tracking.wandb.name='7'", "data.target='it\\'s'"]
    assert changed(*typed) == typed


def test_a_full_disk_keeps_the_file_from_which_a_sweep_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_sweep(OmegaConf.create({"seed": 1, "rounds": "${seed}"}), tmp_path)
    before = (tmp_path / "multirun.yaml").read_text()
    assert OmegaConf.load(tmp_path / "multirun.yaml").rounds == 1

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save_sweep(OmegaConf.create({"seed": 2}), tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("multirun.yaml", before)]
