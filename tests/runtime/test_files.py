"""Checksums of files, and the manifest of a folder: every damage is found."""

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert4rec.runtime import files
from bert4rec.runtime.files import N_SAMPLES, SAMPLE_BYTES, sample_sha256, sha256, withdraw_directory

WHOLE = N_SAMPLES * SAMPLE_BYTES


@pytest.mark.parametrize("size", [0, 100_000, WHOLE, WHOLE + 1, 5_000_000])
def test_a_file_is_taken_whole_or_in_pieces_from_its_first_byte_to_its_last(tmp_path: Path, size: int) -> None:
    path, content = tmp_path / "file", np.random.default_rng(size).bytes(size)
    path.write_bytes(content)
    assert sha256(path) == hashlib.sha256(content).hexdigest()
    pieces = [content[(first := i * (size - 65_536) // 63) : first + 65_536] for i in range(64)]
    sample = b"".join(pieces) if size > WHOLE else content
    assert (sample[:9], sample[-9:]) == (content[:9], content[-9:])
    assert sample_sha256(path) == hashlib.sha256(sample).hexdigest()


NAMES = [".metadata", "__0_0.distcp", "facts.json", files.MANIFEST]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files like those of a checkpoint, and their manifest."""
    folder, draw = tmp_path_factory.mktemp("sound"), np.random.default_rng(1)
    for name, size in zip(NAMES, (700, 50_000, 3000), strict=False):
        (folder / name).write_bytes(draw.bytes(size))
    files.write_manifest(folder, files.describe(folder, NAMES[:-1]))
    return folder


@pytest.mark.parametrize("damage", ["byte", "end", "empty", "missing"])
@pytest.mark.parametrize("number", range(4))
def test_a_damaged_file_is_named(sound: Path, tmp_path: Path, number: int, damage: str) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "damaged"))
    path = folder / NAMES[number]
    content, draw = bytearray(path.read_bytes()), np.random.default_rng(1)
    for _ in range(5 if damage in ("byte", "end") else 1):
        changed, place = content[:], int(draw.integers(len(content)))
        changed[place] ^= int(draw.integers(1, 256))
        path.write_bytes({"byte": changed, "end": content[:place], "empty": b"", "missing": b""}[damage])
        if damage == "missing":
            path.unlink()
        problem = files.problem_of(folder)
        assert problem.startswith(f"{path.name} ") or (problem and path.name == files.MANIFEST and damage == "byte")
    if path.name != files.MANIFEST:
        assert files.problem_of(folder, looks_at=lambda one: one == number) != ""
        assert files.problem_of(folder, looks_at=lambda one: one != number) == ""
    assert files.problem_of(sound) == ""


WRITES_ON = """
import sys
from pathlib import Path
while True:
    try:
        for number in range(1000):
            (Path(sys.argv[1]) / str(number)).mkdir(exist_ok=True)
            (Path(sys.argv[1]) / str(number) / "file").touch()
    except FileNotFoundError:
        pass
"""


def test_a_folder_that_another_process_still_writes_to_is_gone_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES_ON, str(tmp_path / "work")]) as writer:
        try:
            for _ in range(10):
                (tmp_path / "work").mkdir()
                while len([*(tmp_path / "work").iterdir()]) < 50:
                    time.sleep(0.001)
                withdraw_directory(tmp_path / "work")
                assert not [*tmp_path.iterdir()]
        finally:
            writer.kill()
