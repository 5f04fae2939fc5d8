"""Counter-based random numbers: hashes of a key and a counter instead of draws from a generator."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bert4rec.runtime.arrays import Int64s

# Constants of splitmix64 (Steele, Lea, Flood 2014).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]
CIPHER_ROUNDS = 12  # with fewer rounds, counts over many keys show that the orders of five items are not equally likely


def mix(x: Words) -> Words:
    """Return the splitmix64 finalizer of `x`; products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def splitmix64(key: Words, counter: Words) -> Words:
    """Return output number `counter`, counted from 0, of the splitmix64 generator seeded with `key`."""
    return mix(key + (counter + np.uint64(1)) * GAMMA)


class Permutation:
    """A permutation of range(`n`), `n` at least 1, determined by `key`, integers from 0.

    >>> order = Permutation(10, (1, 2))
    >>> sorted(order.at(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> order.places(order.at(np.array([7, 0, 7]))).tolist()
    [7, 0, 7]
    """

    def __init__(self, n: int, key: tuple[int, ...]) -> None:
        self._n = np.uint64(n)
        side = math.isqrt(n - 1) + 1  # the square root, rounded up
        self._sides = np.uint64(side), np.uint64(-(-n // side))
        self._keys: Words = np.random.SeedSequence(key).generate_state(CIPHER_ROUNDS, np.uint64).astype(np.uint64)

    def at(self, positions: Int64s) -> Int64s:
        """Return the values [B] of the permutation at `positions` [B], each in range(n)."""
        return self._walk(self._once, positions)

    def places(self, values: Int64s) -> Int64s:
        """Return the positions [B] at which the permutation has the `values` [B], each in range(n)."""
        return self._walk(self._back, values)

    def _walk(self, step: Callable[[Words], Words], numbers: Int64s) -> Int64s:
        """Return what `step`, a permutation of range(a × b), makes of `numbers` in range(n).

        Results outside range(n) are permuted again until they are inside, so that this is a permutation of range(n)
        (cycle walking).
        """
        found = step(numbers.astype(np.uint64))
        outside = np.flatnonzero(found >= self._n)
        while len(outside):
            found[outside] = step(found[outside])
            outside = outside[found[outside] >= self._n]
        return found.astype(np.int64)

    def _once(self, numbers: Words) -> Words:
        """Return `numbers` in a permutation of range(a × b): each round shifts one half by a hash of the other half."""
        a, b = self._sides
        left, right = numbers // b, numbers % b
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + mix(left + key) % b) % b
            else:
                left = (left + mix(right + key) % a) % a
        return left * b + right

    def _back(self, numbers: Words) -> Words:
        """Return what `_once` makes `numbers` of: the same rounds, the last one first, shift back."""
        a, b = self._sides
        left, right = numbers // b, numbers % b
        for number, key in reversed([*enumerate(self._keys)]):
            if number % 2:
                right = (right + b - mix(left + key) % b) % b
            else:
                left = (left + a - mix(right + key) % a) % a
        return left * b + right
