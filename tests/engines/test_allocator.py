import os
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
    # Both thresholds are fixed: glibc otherwise raises them by itself when a block is freed.
    fixed = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**17)}
    done = subprocess.run(
        command, env=os.environ | fixed, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is about glibc")
def test_freed_memory_is_used_again() -> None:
    # Without the setting it is all 163,840.
    assert faults() < 2000
