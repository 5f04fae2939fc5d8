"""Packages: the right ones, others, and a library that was built for another torch."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bert4rec.doctor import installation


def test_here_all_is_as_it_is_pinned() -> None:
    python, packages, matching = installation.installation()
    assert all(finding.is_good for finding in (python, packages, matching)), (packages, matching)
    assert python.text.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert matching.text.startswith("load together: torch 2.")


def test_another_version_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": "2.0.0+cpu"}

    def version(name: str) -> str:
        if name == "polars":
            raise metadata.PackageNotFoundError
        return found.get(name, pins[name])

    pins = dict(installation._pins())
    monkeypatch.setattr(installation.metadata, "version", version)
    _, packages, _ = installation.installation()
    assert packages.text == f"torch 2.0.0+cpu in place of {pins['torch']}, polars missing in place of {pins['polars']}"
    assert packages.advice == "`make setup` installs what fits together"


@pytest.mark.parametrize(
    "error", ["OSError('libfbgemm.so: undefined symbol: _ZN3c10')", "ImportError('no fbgemm')", "AttributeError()"]
)
def test_an_fbgemm_that_was_built_for_another_torch(tmp_path: Path, error: str) -> None:
    """In a process of its own, which finds a broken one first."""
    (tmp_path / "fbgemm_gpu.py").write_text(f"raise {error}\n")
    program = "from bert4rec.doctor.installation import matching; print(matching())"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env={"PYTHONPATH": f"{tmp_path}:{root}"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    assert line.startswith("BAD   torch, torchrec, fbgemm: ")
    assert "does not load: " in line
    assert line.endswith("; `make setup` installs what fits together")
