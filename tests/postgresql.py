"""A real PostgreSQL, as a user of its own."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

PROGRAMS = next(iter(sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)), "")
PASSWORD = "5ec/2e7@"
Server = tuple[str, Callable[..., None]]


@contextmanager
def running(*, syncs: bool = False) -> Iterator[Server]:
    """Its address, without the password, and a function that calls `pg_ctl`, while it runs."""
    user = "nobody" if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # where others may enter
    if user:
        os.chown(place, pwd.getpwnam(user).pw_uid, -1)
    (place / "password").write_text(PASSWORD)
    (place / "password").chmod(0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *options: str) -> None:
        command = [f"{PROGRAMS}/{program}", "-D", "data", *options]
        subprocess.run(command, check=True, user=user, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def control(*words: str) -> None:
        run("pg_ctl", *words, "-w", "-l", "log", "-o", f"-p {port} -k {place} -h 127.0.0.1{'' if syncs else ' -F'}")

    run("initdb", "-U", "ann", "-A", "scram-sha-256", "--pwfile", "password", "--no-sync", "-E", "UTF8")
    control("start")
    yield f"postgresql://ann@127.0.0.1:{port}/postgres", control
    run("pg_ctl", "stop", "-m", "immediate")
    shutil.rmtree(place)
