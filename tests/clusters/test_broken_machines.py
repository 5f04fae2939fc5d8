"""`bert4rec doctor` on machines that are broken in one way each, in namespaces of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fbgemm_gpu
import pytest

from bert4rec.config.tables import Config
from tests.launch import ROOT, settings_file

pytestmark = pytest.mark.nodes

LIBRARY = Path(fbgemm_gpu.__path__[0]) / "fbgemm_gpu_py.so"


@pytest.mark.parametrize(
    ("breaking", "bad"),
    [
        ("true", []),
        (f"mount --bind /dev/null {LIBRARY}", ["torch, torchrec, fbgemm: "]),
        (
            "mount -t tmpfs -o size=1m tmpfs /dev/shm",
            ["shared memory: 1 MiB free in /dev/shm, less than 64; start the container with --ipc=host or"],
        ),
        (
            "ulimit -n 64",
            ["open files: at most 64 a process, less than the 100 of a training on 1 process; raise the hard limit: "],
        ),
        (
            "hostname nowhere-else",
            [
                "host name: nowhere-else does not resolve: Name or service not known; add ",
                "gloo: two processes have not met within ",
            ],
        ),
        (
            "mkdir runs && mount -t tmpfs -o size=2m tmpfs runs && { head -c 4m /dev/zero >runs/full || true; }",
            ["disk: {folder}/runs: cannot be written: No space left on device; name another folder with --run.dir"],
        ),
    ],
    ids=["whole", "fbgemm", "shared memory", "open files", "host name", "disk"],
)
def test_what_is_wrong_is_said(
    small_config: Callable[..., Config], tmp_path: Path, breaking: str, bad: list[str]
) -> None:
    file = settings_file(small_config(), tmp_path)
    command = f"cd {tmp_path} && {breaking} && cd {ROOT} && exec {sys.executable} -m bert4rec doctor {file}"
    done = subprocess.run(
        ["unshare", "--uts", "--mount", "bash", "-c", command], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line.removeprefix("BAD   ") for line in done.stdout.splitlines() if line.startswith("BAD")]
    expected = [line.format(folder=tmp_path) for line in bad]
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected, done.stdout
    assert done.returncode == (1 if bad else 0), done.stderr
    print("\n".join(found))
