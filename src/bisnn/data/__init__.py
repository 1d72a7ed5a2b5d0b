"""Datasets."""

from bisnn.data.toy import Split, f_1d, one_d, two_moons

__all__ = ["Split", "f_1d", "one_d", "two_moons"]
