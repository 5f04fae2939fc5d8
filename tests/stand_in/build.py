"""Compile the stand-in for a GPU; this module is imported without torch."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

N_GPUS = "STAND_IN_GPUS"  # variable with the number of GPUs that a process sees
UUID = "STAND_IN_UUID"  # variable that tells the GPUs of processes apart that see one each
SOURCE = Path(__file__).with_name("device.cpp")
BUILD = Path(__file__).parents[2] / "build" / "stand_in"
NAME = "stand_in_device"


class NotHereError(Exception):
    """This machine cannot run the stand-in."""


def build() -> Path:
    """Return the compiled device; it is compiled once for a source and a version of torch. Raises `NotHereError`."""
    folder = torch_folder()
    version = (folder / "version.py").read_bytes()
    if b"cuda: Optional[str] = None" not in version:
        raise NotHereError("torch is built for CUDA: the stand-in for a GPU needs the build for CPUs, TORCH_BUILD=cpu")
    path = BUILD / hashlib.sha256(SOURCE.read_bytes() + version).hexdigest()[:12] / f"{NAME}.so"
    if path.exists():
        return path
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NotHereError("no C++ compiler: the stand-in for a GPU needs g++, or the one that CXX names")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    headers = (folder / "include", folder / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    subprocess.run(
        [
            compiler, "-O1", "-w", "-std=c++20", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={NAME}",
            "-DTORCH_API_INCLUDE_EXTENSION_H", *(f"-I{header}" for header in headers), str(SOURCE), "-o",
            str(unfinished), f"-L{folder / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python",
        ],
        check=True,
    )  # fmt: skip
    unfinished.replace(path)
    return path


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
