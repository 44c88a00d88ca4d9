"""Folders that cannot be used are refused in one line, before Hydra makes anything."""

from pathlib import Path

import pytest
from command_line import fedexp, fedexp_partition

from fedexp.errors import InputError
from fedexp.train import run

TOO_LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([f"hydra.run.dir={TOO_LONG}"], f"hydra.run.dir={TOO_LONG}: cannot be used (File name too"),
        (["hydra.run.dir=loop"], "hydra.run.dir=loop: cannot be used (Too many levels of symbolic"),
        (["hydra.run.dir=loop/a"], "hydra.run.dir=loop/a: cannot be used (Too many levels of"),
        (["resume=loop"], "hydra.run.dir=loop: cannot be used (Too many levels of symbolic links)"),
        (
            ["-m", "seed=1,2", f"hydra.sweep.dir={TOO_LONG}"],
            f"hydra.sweep.dir={TOO_LONG}: cannot be used (File name too long)",
        ),
        (
            ["-m", "seed=1,2", "hydra.sweep.dir=loop/a"],
            "hydra.sweep.dir=loop/a: cannot be made (Too many levels of symbolic links)",
        ),
    ],
)
def test_a_name_that_is_too_long_and_links_in_a_circle(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    done = fedexp(*arguments, folder=folder)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"fedexp: {line}")
    assert [path.name for path in folder.iterdir()] == ["loop"]


def test_from_python_it_is_one_line_too() -> None:
    with pytest.raises(InputError, match="cannot be used") as caught:
        run([f"hydra.run.dir={TOO_LONG}"])
    assert "\n" not in str(caught.value)


def test_the_preview_refuses_them_too(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    done = fedexp_partition(f"hydra.run.dir={TOO_LONG}", folder=folder)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.endswith("cannot be used (File name too long); name another folder")
