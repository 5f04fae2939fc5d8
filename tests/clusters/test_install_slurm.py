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


def test_what_is_there_is_not_installed(tmp_path: Path) -> None:
    assert run(tmp_path, "0", *PROGRAMS, "apt-get") == (0, "", "")


def test_who_is_not_root_is_told_in_a_line(tmp_path: Path) -> None:
    status, _, error = run(tmp_path, "1000", *PROGRAMS)
    assert (status, error.splitlines()) == (
        1, ["test-slurm: the daemons of Slurm's nodes run as root: use root, or a container in which you are root."],
    )  # fmt: skip


def test_without_apt_the_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    status, _, error = run(tmp_path, "0", *PROGRAMS[2:])
    line = "test-slurm: no slurmctld slurmd here, and no apt-get: install Slurm with slurmdbd, munge and MariaDB.\n"
    assert (status, error) == (1, line)


def test_what_is_missing_is_installed_from_the_distribution(tmp_path: Path) -> None:
    status, shown, error = run(tmp_path, "0", *PROGRAMS[1:], "apt-get")
    assert (status, shown) == (0, "test-slurm: installing Slurm, munge and MariaDB; missing: slurmctld\n")
    packages = "slurm-wlm slurmdbd munge mariadb-server util-linux"
    assert error == f"apt-get -qq update\napt-get -qq install --no-install-recommends {packages}\n"
