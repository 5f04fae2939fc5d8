"""What the sample of a file sees, and how little of it is read."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from bert4rec.runtime.files import PIECE_BYTES, PIECES, sample_sha256, sha256

WHOLE = PIECES * PIECE_BYTES


def written(folder: Path, size: int) -> Path:
    path = folder / "file"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    return path


@pytest.mark.parametrize("size", [0, 1, 100_000, WHOLE])
def test_a_small_file_is_taken_whole(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, size)
    assert sample_sha256(path) == sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [WHOLE + 1, 5_000_000, 12_345_678])
def test_a_large_file_is_taken_in_pieces_from_its_first_byte_to_its_last(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, size)
    content = path.read_bytes()
    pieces = [content[(first := i * (size - 65_536) // 63) : first + 65_536] for i in range(64)]
    assert pieces[0] == content[:65_536]
    assert pieces[-1] == content[-65_536:]
    assert sample_sha256(path) == hashlib.sha256(b"".join(pieces)).hexdigest() != sha256(path)


@pytest.mark.parametrize("place", [0, 65_535, -65_536, -1])
def test_a_changed_end_of_a_large_file_is_seen(tmp_path: Path, place: int) -> None:
    path = written(tmp_path, 6_000_000)
    before, content = sample_sha256(path), bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert sample_sha256(path) != before


def test_what_lies_between_the_pieces_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, 12_000_000)
    samples, wholes, content = {sample_sha256(path)}, {sha256(path)}, bytearray(path.read_bytes())
    content[70_000] ^= 1
    path.write_bytes(content)
    assert (len(samples | {sample_sha256(path)}), len(wholes | {sha256(path)})) == (1, 2)
