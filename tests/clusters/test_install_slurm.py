"""`scripts/install_slurm.sh`, on a PATH that holds only stand-ins: nothing is installed."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/install_slurm.sh"
PROGRAMS = ["slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "sacct", "unshare", "setpriv"]


def run(folder: Path, user: str, *programs: str) -> tuple[int, str, str]:
    for name, text in {"id": f"echo {user}", **dict.fromkeys(programs, 'echo "$0 $*" | sed "s,.*/,," >&2')}.items():
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(["/bin/sh", SCRIPT], env={"PATH": str(folder)}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_what_is_missing_is_installed_where_that_can_be(tmp_path: Path) -> None:
    for name, user, programs, status in (
        ("all is there", "0", [*PROGRAMS, "apt-get"], 0), ("no root", "1000", PROGRAMS, 1),
        ("no apt", "0", PROGRAMS[2:], 1), ("one is missing", "0", [*PROGRAMS[1:], "apt-get"], 0),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        found, _, error = run(tmp_path / name, user, *programs)
        assert (found, "apt-get -qq install" in error) == (status, name == "one is missing"), name
