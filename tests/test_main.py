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


COUNTED = """
import sys
from collections import Counter
calls = Counter()

def count(owner, name):
    called = getattr(owner, name)
    def counting(*arguments):
        caller = sys._getframe(1).f_code.co_name
        calls[name] += (name, caller) != ("describe", "load")  # a reader describes what it loads
        return called(*arguments)
    setattr(owner, name, counting)

from fedexp.config import schema
count(schema, "validate")
from fedexp.config import composed
from fedexp.data.readers.digits import Digits
from fedexp.runtime import early
count(composed, "to_dict")
count(Digits, "describe")
count(early, "build")
count(early, "LocalOptimizer")
from fedexp.train import main
sys.argv[1:] = ["resume=auto", "rounds=1", "clients.count=2", "clients.per_round=1"]
sys.argv += ["local.epochs=1", "tracking.wandb.mode=disabled"]
main()
print(dict(calls))
"""


def test_each_step_on_the_way_from_the_command_is_done_once(tmp_path: Path) -> None:
    calls = python(COUNTED, tmp_path).stdout.splitlines()[-1]
    built = 9  # six parts, two compressors and the data
    once = {"to_dict": 1, "validate": 1, "build": built, "describe": 1, "LocalOptimizer": 1}
    assert calls == str(once)
