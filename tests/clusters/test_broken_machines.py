"""`bert4rec doctor` on machines that are broken in one way each, in namespaces of their own."""

import sys
from pathlib import Path

import fbgemm_gpu
import pytest

from tests.fixture_types import Settings
from tests.launch import ROOT, settings_file, start

pytestmark = pytest.mark.nodes

LIBRARY = Path(fbgemm_gpu.__path__[0]) / "fbgemm_gpu_py.so"


@pytest.mark.parametrize(
    ("breaking", "bad"),
    [
        ("true", []),
        (f"mount --bind /dev/null {LIBRARY}", ["torch, torchrec, fbgemm: "]),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm", ["shared memory: 1 MiB free in /dev/shm, less than 64"]),
        ("ulimit -n 64", ["open files: at most 64 a process, less than the 100 "]),
        ("hostname nowhere-else", ["gloo: two processes have not met within "]),
    ],
    ids=["whole", "fbgemm", "shared memory", "open files", "host name"],
)
def test_what_is_wrong_is_said(small_config: Settings, tmp_path: Path, breaking: str, bad: list[str]) -> None:
    file = settings_file(small_config(), tmp_path)
    command = f"cd {tmp_path} && {breaking} && cd {ROOT} && exec {sys.executable} -m bert4rec doctor {file}"
    done = start(["unshare", "--uts", "--mount", "bash", "-c", command])
    found = [line.removeprefix("BAD   ") for line in done.stdout.splitlines() if line.startswith("BAD")]
    assert [line[: len(begin)] for line, begin in zip(found, bad, strict=True)] == bad, done.stdout
    assert done.returncode == (1 if bad else 0), done.stderr
    print("\n".join(found))
