"""Normals from counters: published vectors, the same bits everywhere, and the right distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupts import needs_signals, output_after_control_c
from problems import assert_same_bits

import depthgauge as dg
from depthgauge.backends import get_backend
from depthgauge.backends.reference import philox as reference

mpmath = pytest.importorskip("mpmath")

MOST = 2**32 - 1
# The inner bits of pi, as the published vectors have them.
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


def targets() -> list[str]:
    supported: list[str] = dg.build_config().get("targets_supported", [])
    return supported


# Random123's kat_vectors for philox4x32 of 10 rounds: counter, key, result.
@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MOST,) * 4, (MOST,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_published_vectors_of_philox(
    counter: tuple[int, int, int, int], key: tuple[int, int], want: tuple[int, ...]
) -> None:
    words = tuple(np.array([word], np.uint64) for word in counter)
    got = reference.philox(words, key[0] | key[1] << 32)  # type: ignore[arg-type]  # four of them
    assert tuple(int(word[0]) for word in got) == want


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 8191, 40000])
def test_bits_are_those_of_the_reference(
    target: str, count: int, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPTHGAUGE_TARGET", target)
    seeds = np.array([0, 2**64 - 1, 0x0123456789ABCDEF], np.uint64)
    options: dict[str, Any] = {"first_layer": MOST - 1, "matrix": 3, "deviation": 0.3, "threads": 2}
    got, want = (np.full((3, 2, count), np.nan, dtype) for _ in range(2))
    get_backend("native").fill_normals(got, seeds, **options)
    get_backend("reference").fill_normals(want, seeds, **options)
    assert_same_bits(got, want)


@given(
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, MOST),
    shape=st.lists(st.integers(0, 40), max_size=3),
    double=st.booleans(),
)
def test_backends_agree_on_any_arguments(seed: int, stream: int, shape: list[int], double: bool) -> None:
    options: dict[str, Any] = {"stream": stream, "dtype": np.float64 if double else np.float32}
    got = dg.normal(seed, shape, backend="native", **options)
    assert got.shape == tuple(shape)
    assert got.flags.owndata
    assert got.flags.writeable
    assert_same_bits(got, dg.normal(seed, shape, backend="reference", **options))


def test_bits_depend_on_neither_threads_nor_size(dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    whole = dg.normal(5, 150_001, dtype=dtype, threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(dg.normal(5, 150_001, dtype=dtype, threads=threads), whole)
    for size in (1, 100, 8192, 99_999):
        assert_same_bits(dg.normal(5, size, dtype=dtype), whole[:size])


def test_the_layout_is_what_it_is_said_to_be(dtype: np.dtype[Any]) -> None:
    """Every number from the one block that makes it, by the formula in 40 digits."""
    lanes, each = 64 // dtype.itemsize, 16 // dtype.itemsize
    numbers = dg.normal(77, 3 * lanes * each, dtype=dtype, stream=9)
    for n, number in enumerate(numbers):
        line, rest = divmod(n, lanes * each)
        which, lane = divmod(rest, lanes)
        counter = [np.array([word], np.uint64) for word in (line * lanes + lane, 0, 9, 0)]
        words = [int(word[0]) for word in reference.philox(tuple(counter), 77)]  # type: ignore[arg-type]
        if dtype == np.float32:
            bits, radius, angle = 32, words[which // 2 * 2], words[which // 2 * 2 + 1]
            # The lower 31 bits as a signed number, and a half.
            turn, turns = 2 * (((angle & 0x7FFFFFFF) ^ 0x40000000) - 0x40000000) + 1, 2**32
        else:
            bits, radius, angle = 64, words[1] << 32 | words[0], words[3] << 32 | words[2]
            turn, turns = (angle & (2**63 - 1)) - 2**62, 2**63
        with mpmath.workdps(40):
            u = float(dtype.type(float((mpmath.mpf(radius) + 0.5) / mpmath.mpf(2) ** bits)))  # rounded once
            phase = mpmath.pi / 2 * turn / turns
            cosine, sine = mpmath.cos(phase), mpmath.sin(phase)
            pair = [-cosine if angle & 1 else cosine, sine]
            want = mpmath.sqrt(-2 * mpmath.log(u)) * pair[(which % 2) ^ (angle >> (bits - 1))]
            error = abs(float((mpmath.mpf(float(number)) - want) / want))
        assert error < 3 * np.finfo(dtype).eps, (n, float(want), error)


def test_the_transform_is_accurate_to_the_last_bits(dtype: np.dtype[Any]) -> None:
    """Radii and angles from all over, the tails among them, against the formula in the next wider format."""
    rng = np.random.default_rng(3)
    wide: Any = np.longdouble if dtype == np.float64 else np.float64
    if np.finfo(wide).eps >= np.finfo(dtype).eps:
        pytest.skip("no wider format here")
    u = np.concatenate([rng.random(100_000), np.exp2(-rng.uniform(0, 65 if dtype == np.float64 else 33, 100_000))])
    u, turn = u.astype(dtype), (rng.random(200_000) - 0.5).astype(dtype)
    zero = np.zeros(len(u), np.uint32)
    found = reference._pair(u, turn, swapped=zero, negative=zero)
    angle: Any = turn.astype(wide) * (wide(math.pi) + wide(1.2246467991473532e-16)) / 2
    radius: Any = np.sqrt(-2 * np.log(u.astype(wide)))
    eps = float(np.finfo(dtype).eps)
    for got, want in zip(found, (radius * np.cos(angle), radius * np.sin(angle)), strict=True):
        error = np.max(np.abs((got.astype(wide) - want) / np.where(want == 0, 1, want)))
        assert error < 2.5 * eps, float(error / eps)


def test_extreme_words_give_finite_numbers(dtype: np.dtype[Any]) -> None:
    words = np.array([0, 1, 2, 2**31 - 1, 2**31, MOST - 1, MOST], np.uint32)
    grid = [axis.ravel() for axis in np.meshgrid(words, words, words, words)]
    pairs = reference._pairs_of_64 if dtype == np.float64 else reference._pairs_of_32
    for a, b in pairs(tuple(grid)):  # type: ignore[arg-type]
        for numbers in (a, b):
            assert numbers.dtype == dtype
            assert np.isfinite(numbers).all()
            assert np.max(np.abs(numbers)) <= (9.5 if dtype == np.float64 else 6.8)


def test_moments_and_tails_at_2_to_24(dtype: np.dtype[Any]) -> None:
    n = 2**24
    x = dg.normal(2024, n, dtype=dtype).astype(np.float64, copy=False)
    power = np.ones_like(x)
    for order in range(1, 9):
        power *= x
        mean = math.prod(range(1, order, 2)) if order % 2 == 0 else 0
        variance = math.prod(range(1, 2 * order, 2)) - mean**2
        assert abs(float(np.mean(power)) - mean) < 5 * math.sqrt(variance / n), order
    magnitude = np.abs(x, out=x)
    for share in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        threshold = float(mpmath.sqrt(2) * mpmath.erfinv(1 - mpmath.mpf(share)))
        count = np.count_nonzero(magnitude > threshold)
        assert abs(count - share * n) < 5 * math.sqrt(share * n), share


def test_distribution_and_neighbours(dtype: np.dtype[Any]) -> None:
    n = 2**18
    x = dg.normal(8, n, dtype=dtype).astype(np.float64)
    ordered = np.sort(x)
    phi = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in ordered[::16]])
    distance = np.max(np.abs(phi - np.arange(0, n, 16) / n))
    assert distance < 2.2 / math.sqrt(n)  # Kolmogorov: exceeded once in 10^4 samples
    bound = 5 / math.sqrt(n)
    for lag in (1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 128, 8192):
        for y in (x, (x * x - 1) / math.sqrt(2)):
            assert abs(np.mean(y[lag:] * y[:-lag])) < bound, lag


def test_streams_seeds_layers_and_matrices_are_independent(dtype: np.dtype[Any]) -> None:
    n = 2**16
    fill = get_backend("native").fill_normals
    rows = [dg.normal(seed, n, dtype=dtype, stream=stream) for seed in (0, 1, 2**32, 2**63) for stream in (0, 1, 2**31)]
    for matrix in (1, 2, 3):
        layers = np.empty((2, 3, n), dtype)
        fill(layers, np.array([0, 1], np.uint64), first_layer=0, matrix=matrix, deviation=1.0, threads=1)
        rows += list(layers.reshape(6, n))
    x = np.stack(rows).astype(np.float64)
    for y in (x, (x * x - 1) / math.sqrt(2)):
        correlation = y @ y.T / n
        assert np.max(np.abs(correlation - np.diag(np.diagonal(correlation)))) < 5.5 / math.sqrt(n)


def test_a_deviation_multiplies_rounded_numbers(dtype: np.dtype[Any], backend: str) -> None:
    x = np.empty((1, 1, 1000), dtype)
    seeds = np.array([3], np.uint64)
    get_backend(backend).fill_normals(x, seeds, first_layer=4, matrix=0, deviation=0.1, threads=1)
    assert_same_bits(x.ravel(), dg.normal(3, 1000, dtype=dtype, stream=4) * dtype.type(0.1))


def test_shapes(backend: str) -> None:
    assert dg.normal(1, (), backend=backend).shape == ()
    assert dg.normal(1, 3, backend=backend).shape == (3,)
    assert dg.normal(1, np.array(3), backend=backend).shape == (3,)  # type: ignore[arg-type]
    assert dg.normal(1, (2, 0, 3), backend=backend).shape == (2, 0, 3)
    whole = dg.normal(1, 24, backend=backend)
    assert_same_bits(dg.normal(1, (2, 3, 4), backend=backend), whole.reshape(2, 3, 4))
    assert_same_bits(dg.normal(1, np.array([4, 6]), backend=backend), whole.reshape(4, 6))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((-1, 3), {}, ValueError, "seed=-1 must be an integer >= 0"),
        ((2**64, 3), {}, ValueError, r"must be an integer below 2\*\*64"),
        ((1.0, 3), {}, TypeError, "seed must be an integer"),
        ((1, -3), {}, ValueError, r"shape\[0\]=-3"),
        ((1, (2, 1.5)), {}, TypeError, r"shape\[1\] must be an integer"),
        ((1, "33"), {}, TypeError, "shape must be an integer or a sequence"),
        ((1, 2.0), {}, TypeError, "shape must be an integer or a sequence"),
        ((1, {2: 3}), {}, TypeError, "shape must be an integer or a sequence"),
        ((1, {2, 3}), {}, TypeError, "shape must be an integer or a sequence"),
        ((1, np.array(2.0)), {}, TypeError, "shape"),
        ((1, True), {}, TypeError, "shape"),
        ((np.random.SeedSequence(1), 3), {}, TypeError, "generate_state"),
        ((1, (2**40, 2**40)), {}, ValueError, "asks for more bytes"),
        ((1, 3), {"stream": 2**32}, ValueError, r"stream=4294967296 must be an integer below 2\*\*32"),
        ((1, 3), {"dtype": np.float16}, TypeError, "dtype=float16"),
        ((1, 3), {"backend": "cuda"}, ValueError, "backend='cuda'"),
        ((1, 3), {"threads": 0}, ValueError, "threads=0"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dg.normal(*arguments, **options)


def test_the_extension_checks_again() -> None:
    core = pytest.importorskip("depthgauge._core")
    seeds = np.array([1], np.uint64)
    with pytest.raises(ValueError, match="axes of seeds"):
        core.normals_float64(np.empty(3), seeds, 0, 0, 1.0, "", 1)
    with pytest.raises(ValueError, match="seeds must have 2 elements"):
        core.normals_float64(np.empty((2, 1, 3)), seeds, 0, 0, 1.0, "", 1)
    with pytest.raises(ValueError, match="words of 32 bits"):
        core.normals_float64(np.empty((1, 2, 3)), seeds, MOST, 0, 1.0, "", 1)
    with pytest.raises(ValueError, match="out must be an array of float64"):
        core.normals_float64(np.empty((1, 2, 3), np.float32), seeds, 0, 0, 1.0, "", 1)


@pytest.mark.slow
@needs_signals
def test_control_c_stops_the_native_call_and_the_next_one_works() -> None:
    code = """
import numpy as np
import depthgauge as dg
before = dg.normal(1, 1000)
print("ready", flush=True)
try:
    while True:
        dg.normal(1, 2**24, threads=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.normal(1, 1000), before)
print("works", flush=True)
"""
    words = output_after_control_c(code, after=0.3, environment={"DEPTHGAUGE_BACKEND": "native"})
    assert words == ["interrupted", "works"]
