"""What a run's C code takes on microcontrollers."""

from __future__ import annotations

from bisnn.reporting.charts.canvas import Table
from bisnn.runs.microcontrollers import Microcontrollers


def chips(found: Microcontrollers) -> Table:
    """Flash, RAM and instructions on each."""
    members = "one set of weights" if found.members == 1 else f"{found.members} members"
    rows = [
        (cost.target, f"{cost.flash:,}", f"{cost.ram:,}", f"{cost.instructions:,}")
        if not cost.reason
        else (cost.target, cost.reason, "", "")
        for cost in found.costs
    ]
    return Table(
        "On microcontrollers",
        f"Exported C code of {members}, neurons {found.neurons}. Flash: code and tables "
        f"({found.tables:,} bytes). RAM: the state ({found.state:,} bytes) and the stack. "
        f"Instructions are a mean over {found.steps} time steps by QEMU's counter; they are not "
        "cycles, of which a chip takes one to several for each.",
        ("", "flash, bytes", "RAM, bytes", "instructions per time step"),
        tuple(rows),
    )
