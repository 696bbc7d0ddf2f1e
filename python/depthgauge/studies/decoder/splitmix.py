"""SplitMix64, the generator of the decoder study: one word of state, one output a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Floats

Words = npt.NDArray[np.uint64]

_WORD = 1 << 64
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
# Outputs are made a chunk at a time, so that the dozen operations on a chunk stay in the cache.
_CHUNK = 1 << 14


class SplitMix64:
    """The SplitMix64 generator of Steele, Lea and Flood (2014).

    Output n, from 1, is a fixed mix of ``seed + n * 0x9E3779B97F4A7C15`` modulo 2**64.

    Parameters
    ----------
    seed : int
        The first state, 0 to 2**64 - 1.

    Attributes
    ----------
    state : int
        The present state.  A generator made with it as seed goes on from here.

    Raises
    ------
    TypeError
        If `seed` is not an integer.
    ValueError
        If `seed` is out of range.

    Examples
    --------
    >>> hex(int(SplitMix64(0).integers(1)[0]))
    '0xe220a8397b1dcdaf'
    """

    def __init__(self, seed: int) -> None:
        self.state = arguments.integer("seed", seed, minimum=0)
        if self.state >= _WORD:
            raise ValueError(f"seed={seed} must be below 2**64")

    def copy(self) -> SplitMix64:
        """Return a generator that starts from this one's state and leaves this one alone."""
        return SplitMix64(self.state)

    def skip(self, count: int) -> None:
        """Go past the next `count` outputs without making them."""
        self.state = (self.state + count * _STEP) % _WORD

    def integers(self, count: int) -> Words:
        """Return the next `count` outputs, uint64, shape (count,)."""
        found = np.empty(arguments.integer("count", count, minimum=0), np.uint64)
        for first, chunk in self._chunks(found.size):
            found[first : first + len(chunk)] = chunk
        return found

    def random(self, shape: tuple[int, ...]) -> Floats:
        """Return uniform doubles in [0, 1), the upper 53 bits of one output each, in C order."""
        found = np.empty(shape)
        flat = found.reshape(-1)
        for first, chunk in self._chunks(found.size):
            chunk >>= np.uint64(11)
            np.multiply(chunk, 2.0**-53, out=flat[first : first + len(chunk)])
        return found

    def _chunks(self, count: int) -> Iterator[tuple[int, Words]]:
        """Yield the next `count` outputs in chunks, each in the same memory, with their places."""
        steps = np.arange(1, min(count, _CHUNK) + 1, dtype=np.uint64) * np.uint64(_STEP)
        buffer, shifted = np.empty_like(steps), np.empty_like(steps)
        for first in range(0, count, _CHUNK):
            size = min(_CHUNK, count - first)
            z, other = buffer[:size], shifted[:size]
            np.add(steps[:size], np.uint64(self.state), out=z)
            for shift, factor in _ROUNDS:
                np.right_shift(z, shift, out=other)
                z ^= other
                z *= factor
            np.right_shift(z, _LAST_SHIFT, out=other)
            z ^= other
            self.skip(size)
            yield first, z

    def __repr__(self) -> str:
        return f"SplitMix64(state={self.state:#018x})"
