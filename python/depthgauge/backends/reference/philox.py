"""Random normals in plain NumPy, bit for bit those of the kernels: Philox4x32-10, then Box and Muller's transform.

Number n of a sequence comes from one 128-bit counter and the 64-bit seed that is its key:

====  =======================================================
word  counter, as Philox takes it
====  =======================================================
0, 1  the number of the block within the sequence, low word first
2     the layer, or the stream of `depthgauge.normal`
3     the matrix: 0 for `depthgauge.normal`, 1 up, 2 gate, 3 down
====  =======================================================

A block gives k = 2 numbers in float64 and k = 4 in float32.  Lines of 64 bytes alternate, the blocks of one line side
by side: with W = 64 / itemsize, blocks W i ... W i + W - 1 make numbers W k i ... W k (i + 1) - 1, of which the first W
are the first numbers of these blocks, the next W their second numbers, and so on.

This is layout version `LAYOUT`.  Only operations that IEEE 754 rounds the same way everywhere are used, in the order of
the kernels: change nothing here without changing it there, and the version with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array

LAYOUT = 1

_Words = npt.NDArray[np.uint32]
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LINE = 64

# -2 ln m = -4 s + s z log(z) with s = (m - 1) / (m + 1) and z = s**2; the sine of t right angles is t sine(t**2), its
# cosine 1 + t**2 cosine(t**2).
_COEFFICIENTS: dict[int, dict[str, tuple[str, ...]]] = {
    8: {
        "log": (
            "-0x1.555555555389dp+0",
            "-0x1.999999a2b8bcdp-1",
            "-0x1.249241641ba3fp-1",
            "-0x1.c722818125f21p-2",
            "-0x1.732b16c1bd04cp-2",
            "-0x1.58830a01c95b8p-2",
        ),
        "sine": (
            "0x1.921fb54442d18p+0",
            "-0x1.4abbce625be09p-1",
            "0x1.466bc67754fe4p-4",
            "-0x1.32d2ccdfe644ap-8",
            "0x1.50782d5b6b2d1p-13",
            "-0x1.e2fe733e88a92p-19",
            "0x1.e356905f06f74p-25",
        ),
        "cosine": (
            "-0x1.3bd3cc9be45a3p+0",
            "0x1.03c1f081b137ap-2",
            "-0x1.55d3c7dca1934p-6",
            "0x1.e1f4fbe95e935p-11",
            "-0x1.a6c9f8ab1f912p-16",
            "0x1.f3ecb7560bbdfp-22",
        ),
        "log_4": ("0x1.62e42fefa39efp+0",),
    },
    4: {
        "log": ("-0x1.55557ap+0", "-0x1.995ed8p-1", "-0x1.31e03cp-1"),
        "sine": ("0x1.921fb6p+0", "-0x1.4abbeep-1", "0x1.466be6p-4", "-0x1.2f7c3ep-8"),
        "cosine": ("-0x1.3bd3ccp+0", "0x1.03c1b6p-2", "-0x1.55b684p-6", "0x1.d61e28p-11"),
        "log_4": ("0x1.62e43p+0",),
    },
}


def fill_normals(
    out: Array, seeds: npt.NDArray[np.uint64], *, first_layer: int, matrix: int, deviation: float, threads: int
) -> None:
    """Fill `out`, shape (S, L, n), with normals times `deviation`."""
    del threads
    for row, seed in zip(out, seeds, strict=True):
        for layer, numbers in enumerate(row, first_layer):
            numbers[:] = normals(int(seed), len(numbers), out.dtype, layer=layer, matrix=matrix)
            numbers *= out.dtype.type(deviation)


def normals(seed: int, count: int, dtype: np.dtype[Any], *, layer: int, matrix: int) -> Array:
    """Return the first `count` standard normals of a sequence."""
    width = _LINE // dtype.itemsize
    each = 16 // dtype.itemsize
    lines = -(-count // (width * each))
    block = np.arange(lines * width, dtype=np.uint64)
    constant = np.zeros_like(block)
    words = philox((block & _LOW, block >> _WORD, constant + np.uint64(layer), constant + np.uint64(matrix)), seed)
    pairs = _pairs_of_64(words) if dtype.itemsize == 8 else _pairs_of_32(words)
    numbers = np.stack([number.reshape(lines, width) for pair in pairs for number in pair], axis=1)
    return numbers.reshape(-1)[:count]


_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: tuple[Array, Array, Array, Array], seed: int) -> tuple[_Words, _Words, _Words, _Words]:
    """Return the four words that Philox4x32-10 makes of counters of four words, each held in uint64.

    Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    c0, c1, c2, c3 = counter
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (p1 >> _WORD) ^ c1 ^ np.uint64(key[0]), (p0 >> _WORD) ^ c3 ^ np.uint64(key[1])
        c1, c3 = p1 & _LOW, p0 & _LOW
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _WEYL, strict=True)]
    a, b, c, d = (word.astype(np.uint32) for word in (c0, c1, c2, c3))
    return a, b, c, d


def _pairs_of_64(words: tuple[_Words, _Words, _Words, _Words]) -> list[tuple[Array, Array]]:
    """Return the one pair of a block: the radius from words 1 and 0, the angle from 3 and 2."""
    low, high = words[0], words[1]
    # (n + 1/2) / 2**64 rounded once, for both terms are exact.
    u = high * 2.0**-32 + (low * 2.0**-64 + 2.0**-65)
    low, high = words[2], words[3]
    turn = ((high & np.uint32(0x7FFFFFFF)) * 2.0**-31 - 0.5) + low * 2.0**-63
    return [_pair(u, turn, swapped=high >> np.uint32(31), negative=low & np.uint32(1))]


def _pairs_of_32(words: tuple[_Words, _Words, _Words, _Words]) -> list[tuple[Array, Array]]:
    """Return the two pairs of a block: a radius from words 0 and 2, an angle from 1 and 3."""
    pairs = []
    for radius, angle in (words[:2], words[2:]):
        u = ((radius + 0.5) * 2.0**-32).astype(np.float32)
        turn = (angle << np.uint32(1) | np.uint32(1)).view(np.int32).astype(np.float32) * np.float32(2.0**-32)
        pairs.append(_pair(u, turn, swapped=angle >> np.uint32(31), negative=angle & np.uint32(1)))
    return pairs


def _pair(u: Array, turn: Array, *, swapped: _Words, negative: _Words) -> tuple[Array, Array]:
    """Return sqrt(-2 ln u) times cosine and sine of an angle uniform on the circle.

    `turn`, in [-1/2, 1/2], counts right angles; `negative` negates the cosine, then `swapped` swaps it with the sine.
    """
    real = u.dtype.type
    coefficients = {
        name: [real(float.fromhex(c)) for c in row] for name, row in _COEFFICIENTS[u.dtype.itemsize].items()
    }
    m, n = _split(u)
    s = (m - real(1)) / (m + real(1))
    z = s * s
    of_m = s * real(-4) + s * (z * _polynomial(coefficients["log"], z))
    radius = np.sqrt(n * coefficients["log_4"][0] + of_m)

    y = turn * turn
    sine = turn * _polynomial(coefficients["sine"], y)
    cosine = y * _polynomial(coefficients["cosine"], y) + real(1)
    cosine = np.where(negative == 1, -cosine, cosine)
    return radius * np.where(swapped == 1, sine, cosine), radius * np.where(swapped == 1, cosine, sine)


def _split(u: Array) -> tuple[Array, Array]:
    """Return m in [sqrt(1/2), sqrt(2)) and n with u = m / 2**n, both in the dtype of `u`."""
    m, exponent = np.frexp(u)
    # sqrt(1/2), rounded, is the least m.
    small = m < u.dtype.type(0.5**0.5)
    return np.where(small, m + m, m), (small - exponent).astype(u.dtype)


def _polynomial(coefficients: list[Any], z: Array) -> Array:
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * z + coefficient
    return np.asarray(total)
