"""Freed memory that stays with the process."""

from __future__ import annotations

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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    usual, kept = map(int, done.stdout.split())
    assert usual > 1000, "or there is nothing to gain"
    assert kept < usual / 10
