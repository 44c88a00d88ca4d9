"""A loss outside the package, of which a run keeps the text."""

import sys
from pathlib import Path

import pytest

import fedexp
from support.short_runs import SHORT

FILE = "elsewhere_loss.py"
LOSS = """from fedexp.losses.cross_entropy import CrossEntropy
class Halved(CrossEntropy):
    def forward(self, batch):
        return super().forward(batch) / 2
"""
REWRITES = f"{LOSS}open(__file__, 'a').write('x = 1')\n"
"""The same, in a file that changes itself when it is imported."""
OWN = "loss._target_=elsewhere_loss.Halved"


def run_with_own_loss(folder: Path, text: str = LOSS) -> Path:
    """A run in ``folder/run``; the file of its loss is gone afterwards."""
    place = folder / "code"
    place.mkdir()
    (place / FILE).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.setattr(sys, "dont_write_bytecode", True)
        fedexp.run([*SHORT, "rounds=2", OWN, f"hydra.run.dir={folder / 'run'}"])
    sys.modules.pop("elsewhere_loss", None)
    (place / FILE).unlink()
    return folder / "run"
