"""Checksums of files, and the manifest of a folder: every damage is found."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert4rec.runtime import files
from bert4rec.runtime.files import N_SAMPLES, SAMPLE_BYTES, sample_sha256, sha256

WHOLE = N_SAMPLES * SAMPLE_BYTES


def written(folder: Path, size: int) -> Path:
    path = folder / "file"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    return path


@pytest.mark.parametrize("size", [0, 1, 100_000, WHOLE, WHOLE + 1, 5_000_000, 12_345_678])
def test_a_file_is_taken_whole_or_in_pieces_from_its_first_byte_to_its_last(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, size)
    content = path.read_bytes()
    assert sha256(path) == hashlib.sha256(content).hexdigest()
    if size <= WHOLE:
        assert sample_sha256(path) == sha256(path)
        return
    pieces = [content[(first := i * (size - 65_536) // 63) : first + 65_536] for i in range(64)]
    assert (pieces[0], pieces[-1]) == (content[:65_536], content[-65_536:])
    assert sample_sha256(path) == hashlib.sha256(b"".join(pieces)).hexdigest() != sha256(path)


@pytest.mark.parametrize(
    ("place", "is_seen"), [(0, True), (65_535, True), (-65_536, True), (-1, True), (70_000, False)]
)
def test_a_changed_byte_is_seen_where_a_piece_has_it(tmp_path: Path, place: int, is_seen: bool) -> None:
    path = written(tmp_path, 12_000_000)
    before, content = (sample_sha256(path), sha256(path)), bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert (sample_sha256(path) != before[0], sha256(path) != before[1]) == (is_seen, True)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A folder of files like those of a checkpoint, and their manifest."""
    folder, draw = tmp_path / "sound", np.random.default_rng(1)
    folder.mkdir()
    sizes = {".metadata": 700, "__0_0.distcp": 50_000, "facts.json": 3000}
    for name, size in sizes.items():
        (folder / name).write_bytes(draw.bytes(size))
    files.write_manifest(folder, files.describe(folder, sizes))
    return folder


def test_a_hundred_damages_are_recognised(sound: Path, tmp_path: Path) -> None:
    assert files.problem_of(sound) == ""
    rng = np.random.default_rng(1)
    names = sorted(path.name for path in sound.iterdir())
    assert names == [".metadata", "__0_0.distcp", "facts.json", "manifest.json"]
    for number in range(100):
        folder = Path(shutil.copytree(sound, tmp_path / f"damaged-{number}"))
        path, how = folder / names[number % len(names)], number // len(names) % 3
        content = bytearray(path.read_bytes())
        if how == 0:
            content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
        elif how == 1:
            del content[int(rng.integers(len(content))) :]
        path.write_bytes(content)
        if how == 2:
            path.unlink()
        assert files.problem_of(folder) != ""
        shutil.rmtree(folder)


def test_the_damaged_file_is_named(sound: Path) -> None:
    facts = sound / "facts.json"
    for damage in (lambda: facts.write_bytes(bytes(3001)), lambda: facts.write_bytes(bytes(3000)), facts.unlink):
        damage()
        assert files.problem_of(sound).startswith("facts.json ")
    assert files.problem_of(sound, looks_at=lambda number: number == 2).startswith("facts.json ")
    assert files.problem_of(sound, looks_at=lambda number: number != 2) == ""
    for damage in (lambda: (sound / "manifest.json").write_text("{}"), (sound / "manifest.json").unlink):
        damage()
        assert files.problem_of(sound).startswith("manifest.json ")
