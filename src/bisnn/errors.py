"""Ends of a run that its user can act on; the command line prints their message alone. Bad arguments are ValueErrors everywhere."""

from __future__ import annotations


class Stopped(RuntimeError):
    """Training cannot go on; the message says why and what to change."""


class Interrupted(RuntimeError):
    """Ctrl-C or SIGTERM: everything is saved; the message says how to go on."""

    def __init__(self, message: str, signal: int):
        super().__init__(message, signal)
        self.message, self.signal = message, signal

    def __str__(self) -> str:
        return self.message
