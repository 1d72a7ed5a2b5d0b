"""Times of a camera's clock put right: single wrong ones, turns of the counter, steps back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A step back up to this is events out of order; a longer one is a clock set back
JITTER_US = 100_000


def strays(t: np.ndarray, turns_us: Sequence[int]) -> np.ndarray:
    """Single times far from both neighbours: damaged records, which must not move the rest."""
    step = _steps(t, turns_us)[0]
    stray = np.zeros(len(t), bool)
    back_and_forth = (np.abs(step[:-1]) > JITTER_US) & (np.abs(step[1:]) > JITTER_US)
    stray[1:-1] = back_and_forth & (np.abs(t[2:] - t[:-2]) <= JITTER_US)
    stray[1:] &= ~stray[:-1]  # of two in a row that accuse each other, the first goes
    return stray


def straightened(t: np.ndarray, turns_us: Sequence[int]) -> tuple[np.ndarray, dict[str, int]]:
    """Times that go on where the clock turned over or was set back; small steps back stay."""
    step, turned = _steps(t, turns_us)
    back = step < -JITTER_US
    step[back] = 0
    t = np.concatenate([t[:1], t[0] + np.cumsum(step)])
    # Below 0: the first events came just after a turn, some from before it later
    t -= min(0, int(t.min()) >> 32 << 32)
    late = int((t < np.maximum.accumulate(t)).sum())
    return t, {"clock turned over": turned, "clock set back": int(back.sum()), "out of order": late}


def _steps(t: np.ndarray, turns_us: Sequence[int]) -> tuple[np.ndarray, int]:
    """Steps between times, and how often the clock turned over, from near its top to near 0."""
    step, turned = np.diff(t), 0
    for turn in turns_us:
        before, after = t[:-1], t[1:]
        near = turn >> 6  # about a minute without an event, at most
        from_top = (before >= turn - near) & (before < turn)
        over = from_top & (after < near) & (before - after >= turn - near)
        # Out of order at a turn
        to_top = (after >= turn - JITTER_US) & (after < turn)
        under = to_top & (after - before >= turn - JITTER_US)
        step[over] += turn
        step[under] -= turn
        turned += int(over.sum()) - int(under.sum())
    return step, max(0, turned)
