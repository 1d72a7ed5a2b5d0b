"""The kernels that runs on a CPU use, compiled before the runs begin.

Where numba has not kept them yet, as after an install, every worker would compile all of them, at
the same time. In `STAGES` each is compiled once, by two workers at a time.
"""

from __future__ import annotations

from bisnn.neuron import SRM


def _compile_sums() -> None:
    import bisnn.bits.counting  # noqa: F401


def _compile_scans() -> None:
    import bisnn.bits.philox_kernels  # noqa: F401
    from bisnn.kernels import cpu_scan

    cpu_scan.scan(SRM)


def _compile_training() -> None:
    import bisnn.kernels.cpu
    import bisnn.kernels.cpu_updates  # noqa: F401


def _compile_inference() -> None:
    from bisnn.packed import loops

    loops.spikes(SRM)


# The functions of a stage are independent, and use what the stage before has compiled.
STAGES = ((_compile_sums, _compile_scans), (_compile_training, _compile_inference))
