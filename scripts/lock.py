"""Make requirements.lock and requirements-serve.lock anew: `make lock`.

A version that the lock names is kept, as long as pyproject.toml allows it: delete its line to take the newest one. What
pyproject.toml has gained is added, what it has lost is removed. Nothing is installed.

Not in the lock: torch, torchrec, fbgemm-gpu and torchx, which pyproject.toml itself pins; setuptools, which each Python
brings; and what depends on the build of torch, which torch itself pins.

requirements-serve.lock has what `bert4rec serve` needs alone, with torch: those of `SERVING`, the extra serve,
and what these need, in the versions of requirements.lock.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from scripts.requirements import PROJECT, requirements

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"[\w-]+")
LOCK = ROOT / "requirements.lock"
LEFT_OUT = re.compile(r"(torch|torchrec|torchx|triton|setuptools)$|(fbgemm-gpu|nvidia|cuda)\b")
LOCK_OF_SERVER = ROOT / "requirements-serve.lock"
SERVING = ("torch", "numpy", "polars", "pyarrow", "pydantic", "safetensors", "tomli", "tomli-w", "tqdm")
HEADER_OF_SERVER = """\
# What `bert4rec serve` needs alone, without TorchRec and all else that trains; the wheel of the package comes after it:
# pip install -r requirements-serve.lock && pip install --no-deps bert4rec_torchrec-*.whl. `make lock` writes this file.
"""
HEADER = """\
# The versions that all tests pass with. `make setup`, the image and CI install what pyproject.toml requires in these.
# torch, torchrec, fbgemm-gpu and torchx are pinned there. `make lock` writes this file: it keeps versions and takes
# the newest one that fits for a package without a line. To renew a package, delete its line first.
"""


def main() -> None:
    """Resolve all requirements with all extras, for torch's CPU build, and write the locks."""
    stand_in = ROOT / "build/fbgemm-gpu"
    subprocess.run([ROOT / "scripts/stand_in.sh", stand_in], check=True)
    everything = resolved([*requirements(*PROJECT["optional-dependencies"]), str(stand_in)], LOCK)
    lines = [f"{name}=={version}\n" for name, version in sorted(everything.items()) if not LEFT_OUT.match(name)]
    LOCK.write_text(HEADER + "".join(lines), encoding="utf-8")
    extras = PROJECT["optional-dependencies"]
    some = [text for text in PROJECT["dependencies"] if NAME.match(text)[0] in SERVING]
    serving = resolved([*some, *extras["serve"]], LOCK)
    (torch,) = (text for text in some if text.startswith("torch=="))
    lines = [f"{name}=={version}\n" for name, version in sorted(serving.items()) if not LEFT_OUT.match(name)]
    LOCK_OF_SERVER.write_text(HEADER_OF_SERVER + "".join([*lines, f"{torch}\n"]), encoding="utf-8")


def resolved(wanted: list[str], lock: Path) -> dict[str, str]:
    """Return name → version of all packages that `wanted` needs, with torch's CPU build, by the versions of `lock`."""
    report = ROOT / "build/report.json"
    (torch,) = (text for text in wanted if text.startswith("torch=="))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    resolve = ["install", "--dry-run", "--ignore-installed", f"--report={report}", f"--constraint={lock}"]
    done = subprocess.run(
        [*pip, *resolve, *wanted, f"{torch}+cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout[done.stdout.rfind("\nERROR: Cannot install") + 1 :])
    installed = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in installed}


if __name__ == "__main__":
    main()
