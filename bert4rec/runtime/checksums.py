"""Checksums of files: of every byte, and of a sample that takes no longer for a large file than for a small one."""

import hashlib
from pathlib import Path

PIECES, PIECE_BYTES = 64, 65_536  # of the sample; a file that is no larger than all of them is taken whole


def sha256(path: Path) -> str:
    """SHA-256 of every byte of the file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_sha256(path: Path) -> str:
    """SHA-256 of at most 4 MiB of the file: all of it up to that size, else 64 pieces at even distances.

    The first piece begins the file and the last one ends it. What was cut short, mixed up or written over is found;
    a single flipped bit in a large file is not, since most of the file lies between the pieces.
    """
    size = path.stat().st_size
    if size <= PIECES * PIECE_BYTES:
        return sha256(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in range(PIECES):
            file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()
