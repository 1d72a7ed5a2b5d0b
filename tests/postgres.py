"""A PostgreSQL server for one test, in a folder of its own, on a socket and no port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The server refuses to run as root
USERS = ("postgres", "nobody")


def programs() -> Path | None:
    """The folder of the server's programs, which Debian keeps out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def server() -> Iterator[str]:
    """Start a server and stop it again; gives the URL of an empty database."""
    bin_folder = programs()
    assert bin_folder is not None
    folder = Path(tempfile.mkdtemp(prefix="bisnn-postgres-", dir="/tmp"))  # a short path: a socket
    known = [entry.pw_name for entry in pwd.getpwall()]
    other = next(name for name in USERS if name in known) if os.geteuid() == 0 else None
    if other is not None:
        shutil.chown(folder, other)

    def run(program: str, *arguments: object) -> subprocess.CompletedProcess:
        command = [str(bin_folder / program), *map(str, arguments)]
        return subprocess.run(
            command, user=other, cwd=folder, check=True, capture_output=True, text=True
        )

    data = folder / "data"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    run("initdb", "-D", data, "-U", "bisnn", "--auth=trust", "--no-sync")
    run("pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    try:
        run("createdb", "-h", folder, "-U", "bisnn", "tune")
        yield f"postgresql://bisnn@/tune?host={folder}"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)
