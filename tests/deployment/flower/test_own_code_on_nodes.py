"""A method of the user's own on nodes: its code goes into the app."""

import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from support.fake_grid import DIGITS, FakeGrid, run
from support.pages import forget, paste

import fedexp
from fedexp.cli.compose import composed
from fedexp.cli.flower import main
from fedexp.config.sources import source_code
from fedexp.deployment.flower.app import read_app
from fedexp.deployment.flower.bundle import MODULE
from fedexp.deployment.flower.own_code import make_importable

PAGE = Path(__file__).parents[3] / "docs/start/two_halves.md"
MODULES = ("prototypes", "prior", "helper", "kit")
METHOD = [*DIGITS, "algorithm=prototypes"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, from which Python imports."""
    paste([PAGE], tmp_path)
    forget(*MODULES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    forget(*MODULES)


def app(folder: Path, name: str = "app") -> Path:
    """Write an app; returns its module folder."""
    main([str(folder / name), "--config-dir", str(folder / "conf"), *METHOD])
    return folder / name / MODULE


@pytest.mark.slow
def test_it_equals_the_simulator_at_nodes_that_have_only_the_app(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = app(folder)
    assert "with your own code: prior.py, prototypes.py\n" in capsys.readouterr().out
    simulated = fedexp.run([*METHOD, f"hydra.run.dir={folder}/simulated"], folder / "conf")
    sys.path.remove(str(folder))
    forget(*MODULES)
    make_importable(module)
    found = run(FakeGrid(module, folder / "states"), folder / "runs")
    assert Path(str(sys.modules["prototypes"].__file__)).parent == module / "own"
    assert found.summary["weights_digest"] == simulated.summary["weights_digest"]


def test_it_brings_what_it_imports_and_names_what_must_be_installed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kit/deep").mkdir(parents=True)
    for path, line in {
        "prior.py": "import json, numpy, pytest",
        "prototypes.py": "from kit.deep import more",
        "kit/__init__.py": "",
        "kit/unused.py": "",
        "kit/deep/more.py": "def late():\n    import helper",
        "helper.py": "import absent_everywhere",
    }.items():
        text = (folder / path).read_text() if (folder / path).exists() else ""
        (folder / path).write_text(f"{line}\n{text}")
    module = app(folder)
    own = {path.relative_to(module / "own").as_posix() for path in (module / "own").rglob("*.py")}
    wanted = {"prior.py", "prototypes.py", "kit/__init__.py", "kit/deep/more.py", "helper.py"}
    assert own == wanted == {*source_code(composed(METHOD, folder / "conf").config).own}
    said = f"the server and every node also need: pytest=={pytest.__version__}\n"
    assert said in capsys.readouterr().out
    assert f'"pytest=={pytest.__version__}"' in (module.parent / "pyproject.toml").read_text()
    assert len(build_fab_from_disk(module.parent)) < 30_000


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "test_kit.py",
            r": test_kit\.py: Flower leaves out files with this name; rename the module$",
        ),
        (f"test_kit{EXTENSION_SUFFIXES[0]}", ": test_kit: has no Python file"),
    ],
)
def test_a_module_that_nodes_cannot_get_is_named(path: str, message: str, folder: Path) -> None:
    (folder / path).write_text("")
    text = (folder / "prior.py").read_text()
    (folder / "prior.py").write_text(f"{text}\ndef late():\n    import test_kit\n")
    with pytest.raises(SystemExit, match=message):
        app(folder)


def test_other_code_is_another_app(folder: Path) -> None:
    first = read_app(app(folder)).version
    text = (folder / "prior.py").read_text()
    (folder / "prior.py").write_text(text.replace("+ 1.0", "+ 2.0"))
    assert read_app(app(folder, "other")).version != first
