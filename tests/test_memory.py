"""Freed memory that stays with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from bisnn.runs.memory import keep_freed

def faults():
    '''Pages that the system gives to twenty steps, each of four tensors of 8 MB.'''
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [torch.ones(1 << 21) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
usual = faults()
keep_freed()
faults()
print(usual, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_freed_memory_is_used_again():
    # What glibc gives back by itself depends on where blocks happen to lie: here every large one
    giving_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=giving_back,
        capture_output=True,
        text=True,
        check=True,
    )
    usual, kept = map(int, done.stdout.split())
    assert usual > 1000, "or there is nothing to gain"
    assert kept < usual / 10
