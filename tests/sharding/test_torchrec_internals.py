"""The private names of torch, TorchRec and fbgemm that the package uses are those of the pinned versions."""

from pathlib import Path

import pytest

from scripts.requirements import requirements

ROOT = Path(__file__).parents[2]

# package → the versions for which every name below was read in the sources and used. Before one is added here: look at
# what bert4rec/sharding/torchrec_internals.py does with each name, in the sources of that version.
# Of torchrec 1.6.1 and fbgemm-gpu 1.6.0 the names of the kernel, the planner and the sharded collection were only read;
# of torch 2.11, with which they go, none.
CHECKED = {"torch": ["2.13.0"], "torchrec": ["1.8.0"], "fbgemm-gpu": ["1.8.0"]}


@pytest.mark.parametrize("package", CHECKED)
def test_the_pinned_version_is_one_that_was_checked(package: str) -> None:
    (pinned,) = (text.removeprefix(f"{package}==") for text in requirements() if text.startswith(f"{package}=="))
    assert pinned in CHECKED[package], f"look at the sources of {package} {pinned}, then add it to CHECKED"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if line.startswith(f"{package}==")]  # no other file pins it
