"""Make requirements.lock anew: `make lock`.

A version that the lock names is kept, as long as pyproject.toml allows it: delete its line to take the newest one. What
pyproject.toml has gained is added, what it has lost is removed. Nothing is installed.

Not in the lock: torch, torchrec, fbgemm-gpu and torchx, which pyproject.toml itself pins; setuptools, which each Python
brings; and what depends on the build of torch, which torch itself pins.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from scripts.requirements import PROJECT, requirements

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
LEFT_OUT = re.compile(r"(torch|torchrec|torchx|triton|setuptools)$|(fbgemm-gpu|nvidia|cuda)\b")
HEADER = """\
# The versions that all tests pass with. `make setup`, the image and CI install what pyproject.toml requires in these.
# torch, torchrec, fbgemm-gpu and torchx are pinned there. `make lock` writes this file: it keeps versions and takes
# the newest one that fits for a package without a line. To renew a package, delete its line first.
"""


def main() -> None:
    """Resolve all requirements with all extras, for torch's CPU build, and write the lock."""
    stand_in, report = ROOT / "build/fbgemm-gpu", ROOT / "build/report.json"
    subprocess.run([ROOT / "scripts/stand_in.sh", stand_in], check=True)
    wanted = [*requirements(*PROJECT["optional-dependencies"])]
    (torch,) = (text for text in wanted if text.startswith("torch=="))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    resolve = ["install", "--dry-run", "--ignore-installed", f"--report={report}", f"--constraint={LOCK}"]
    done = subprocess.run(
        [*pip, *resolve, *wanted, f"{torch}+cpu", stand_in],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout[done.stdout.rfind("\nERROR: Cannot install") + 1 :])
    installed = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    versions = {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in installed}
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if not LEFT_OUT.match(name)]
    LOCK.write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
