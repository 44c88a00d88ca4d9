"""Options of installed packages: the template in the docs, installed and used."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedexp
from fedexp.cli.compose import compose
from fedexp.cli.help import config_groups
from fedexp.cli.installed import config_folders
from fedexp.errors import InputError

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "docs/template/my_method"
TINY = ["data.subset=100", "rounds=1", "local.epochs=1", "tracking.wandb.mode=disabled"]

SESSION = f"""
import sys
import fedexp
from fedexp import preview, train

def typed(command, *arguments):
    sys.argv = ["fedexp", *arguments]
    command.main()

result = fedexp.run(["loss=poly", "loss.epsilon=3", *{TINY}])
assert result.summary["choices"]["loss"] == "poly"
typed(preview, "loss=poly")
typed(train, "-m", "loss=poly,cross_entropy", *{TINY})
"""


def installed_by_hand(site: Path, entry: str) -> None:
    """What pip leaves in ``site``."""
    shutil.copytree(TEMPLATE / "my_method", site / "my_method")
    info = site / "my_method-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-method\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[fedexp.conf]\nmy-method = {entry}\n")


def test_an_option_of_a_package_is_listed_with_its_origin_and_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_by_hand(tmp_path, "my_method:conf")
    monkeypatch.syspath_prepend(tmp_path)
    cfg = compose(["loss=poly", "loss.epsilon=3"])
    assert cfg.loss == {"_target_": "my_method.poly.Poly", "epsilon": 3}
    lines = config_groups(cfg.hydra.runtime.config_sources, ["hydra"]).splitlines()
    (losses,) = (line for line in lines if line.startswith("loss: "))
    assert "cross_entropy," in losses
    assert "poly [my-method 0.1]," in losses
    with pytest.raises(InputError, match=r"^loss=pol: no such option; did you mean loss=poly\?$"):
        fedexp.run(["loss=pol"])


@pytest.mark.parametrize("entry", ["my_method:config", "no_such_package:conf", "my_method.poly"])
def test_a_wrong_entry_point_is_named_and_left_out(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed_by_hand(tmp_path, entry)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(config_folders()) == []
    assert f"my-method 0.1: its options are left out, as its entry point my-method={entry}" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_the_template_is_installed_by_pip_and_keeps_its_promises(tmp_path: Path) -> None:
    source, site, work = (tmp_path / name for name in ("source", "site", "work"))
    shutil.copytree(TEMPLATE, source)
    work.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    python("-m", "pip", "install", "--quiet", *offline, "--target", str(site), str(source))
    assert "poly [my-method 0.1]" in python("-m", "fedexp.train", "--help")
    printed = python("-c", SESSION)
    assert "partition.csv" in printed
    assert "poly" in printed.partition("Results")[2]
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(source / "tests"))
