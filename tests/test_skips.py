"""A run of the tests in CI fails if a test skips for a reason that is not allowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = """
import pytest

@pytest.mark.skipif(True, reason="needs a GPU")
def test_on_a_gpu():
    pass

def test_another():
    pass
"""
IN_A_TEST = """
import pytest

def test_it():
    pytest.importorskip("no_such_package")
"""
OF_A_FILE = """
import pytest

pytest.importorskip("no_such_package")
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("content", "environment", "options", "code", "named"),
    [
        (IN_A_TEST, {"CI": "true"}, [], 1, True),
        (ALLOWED, {"CI": "true"}, [], 0, False),
        (IN_A_TEST, {}, [], 0, True),
        (ALLOWED + OF_A_FILE, {"CI": "true"}, ["-n", "2"], 1, True),
    ],
)
def test_the_exit_code_and_the_named_skip(
    content: str,
    environment: dict[str, str],
    options: list[str],
    code: int,
    named: bool,
    tmp_path: Path,
) -> None:
    (tmp_path / "test_one.py").write_text(content)
    (tmp_path / "test_two.py").write_text(ALLOWED)
    others = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.skips", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env={**others, "PYTHONPATH": str(Path(__file__).parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("skips that tests/support/skips.py does not allow" in done.stdout) == named
    assert ("test_one.py:" in done.stdout and "could not import" in done.stdout) == named
