"""A permutation of range(n) that is computed where it is asked for: nothing of the size of n is ever stored.

A Feistel network on pairs (a, b) with a × b a little above n, walked until it ends inside: the generalised Feistel
cipher and the cycle walking of Black & Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
"""

import math

import numpy as np
import numpy.typing as npt

from bert4rec.feed.seeded.hashing import Words, mix

ROUNDS = 12  # with fewer, counts over many keys show that not all orders of five things come up equally often

Indices = npt.NDArray[np.int64]


class Permutation:
    """A bijection of range(`n`), `n` at least 1, that `key`, whole numbers from 0, chooses.

    >>> sorted(Permutation(10, (1, 2)).at(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, n: int, key: tuple[int, ...]) -> None:
        self._n = np.uint64(n)
        side = math.isqrt(n - 1) + 1  # the square root, rounded up
        self._sides = np.uint64(side), np.uint64(-(-n // side))
        self._keys: Words = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).astype(np.uint64)

    def at(self, positions: Indices) -> Indices:
        """Return what stands at `positions` [B], each in range(n)."""
        found = self._once(positions.astype(np.uint64))
        # What has left range(n) is permuted until it is back: it comes from one place only, so none meets another.
        outside = np.flatnonzero(found >= self._n)
        while len(outside):
            found[outside] = self._once(found[outside])
            outside = outside[found[outside] >= self._n]
        return found.astype(np.int64)

    def _once(self, numbers: Words) -> Words:
        """Return a permutation of range(a × b): a hash of each half of a pair shifts the other half, in turn."""
        a, b = self._sides
        left, right = numbers // b, numbers % b
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + mix(left + key) % b) % b
            else:
                left = (left + mix(right + key) % a) % a
        return left * b + right
