"""The hash, held against published test vectors."""

import numpy as np

from bert4rec.feed.seeded.hashing import splitmix64


def test_the_hash_is_splitmix64() -> None:
    """The first outputs of splitmix64 seeded with 1234567, as in Rosetta Code's and Java's test vectors."""
    outputs = splitmix64(np.array([1234567], np.uint64), np.arange(3, dtype=np.uint64))
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
