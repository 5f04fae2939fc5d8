"""Random numbers that are a function of what they are for, in the place of a stream from which they would be drawn."""

import math

import numpy as np
import numpy.typing as npt

# Constants of splitmix64 (Steele, Lea, Flood 2014).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]


def mix(x: Words) -> Words:
    """Return the finalizer of splitmix64; products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def splitmix64(key: Words, counter: Words) -> Words:
    """Return the output number `counter`, from 0, of the generator that is seeded with `key`."""
    return mix(key + (counter + np.uint64(1)) * GAMMA)


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
