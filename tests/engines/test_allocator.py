import subprocess
import sys

import pytest

# Page faults of allocating eight tensors of 8 MiB (16,384 pages of 4 KiB in all) and freeing them,
# ten times, once the heap has grown to hold them.
FAULTS = """
import resource, torch
from fedexp.engines.allocator import keep_freed_memory
keep_freed_memory()
for turn in range(15):
    if turn == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**21) for _ in range(8)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults() -> int:
    command = [sys.executable, "-c", FAULTS]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is about glibc")
def test_freed_memory_is_used_again() -> None:
    # Without the setting it is 0 or all 163,840, as the heap happens to lie.
    assert faults() < 2000
