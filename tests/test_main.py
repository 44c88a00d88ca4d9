"""The command's first moment."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HEAVY = "{'hydra', 'omegaconf', 'pydantic', 'torch', 'rich'}"


def python(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_a_line_is_on_the_terminal_before_anything_slow_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from fedexp import __main__ as start
class Terminal:
    def isatty(self): return True
    def flush(self): pass
    def write(self, text): print(repr(text), sorted({HEAVY} & set(sys.modules)))
sys.argv, sys.stderr = ["fedexp", "rounds=-1"], Terminal()
start.main()
"""
    first = python(code, tmp_path).stdout.splitlines()[0]
    assert first == "'fedexp: reading the config' []"


def test_the_version_is_that_of_fedexp(tmp_path: Path) -> None:
    code = f"""
import sys
from fedexp.__main__ import main
sys.argv = ["fedexp", "--version"]
main()
print(sorted({HEAVY} & set(sys.modules)))
"""
    assert python(code, tmp_path).stdout.splitlines() == [f"fedexp {version('fedexp')}", "[]"]


def test_a_misspelt_column_is_found_before_lightning_is_imported(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,kind\n1,2,x\n2,3,y\n")
    code = """
import sys
import fedexp
try:
    fedexp.run(["data=tabular", "data.path=table.csv", "data.target=kid"])
except ValueError as error:
    print(error)
print("lightning" in sys.modules)
"""
    line, imported = python(code, tmp_path).stdout.splitlines()
    assert line.startswith("data.target=kid: ")
    assert imported == "False"
