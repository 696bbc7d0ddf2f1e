"""Logs of the singular values of long products, against exact arithmetic and against themselves."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exact_products import exact_log_singular_values
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import assert_same_bits

import depthgauge as dg

Array = npt.NDArray[Any]


DEPTH = 96


def gaussian(rng: np.random.Generator, d: int) -> Array:
    scaled: Array = rng.standard_normal((d, d)) / np.sqrt(d)
    return scaled


def powers(rng: np.random.Generator, d: int, step: float) -> Array:
    return rng.permutation(10.0 ** (-step * np.arange(d)))


KINDS: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "dense": lambda rng, d, _: gaussian(rng, d),
    "relu on columns": lambda rng, d, _: gaussian(rng, d) * (rng.random(d) < 0.7),
    "relu on rows": lambda rng, d, _: gaussian(rng, d) * (rng.random(d) < 0.8)[:, None],
    "leaky relu": lambda rng, d, _: gaussian(rng, d) * np.where(rng.random(d) < 0.5, 1.0, 0.01),
    "residual": lambda rng, d, _: np.eye(d) + 0.3 * gaussian(rng, d),
    "residual relu": lambda rng, d, _: (
        np.eye(d) + 0.1 * gaussian(rng, d) @ ((rng.random(d) < 0.5)[:, None] * gaussian(rng, d))
    ),
    "rows graded once": lambda rng, d, layer: (
        gaussian(rng, d) * (powers(rng, d, 1.0) if layer == 48 else np.ones(d))[:, None]
    ),
    "columns graded once": lambda rng, d, layer: gaussian(rng, d) * (powers(rng, d, 1.0) if layer == 48 else 1.0),
    "rows graded": lambda rng, d, _: gaussian(rng, d) * powers(rng, d, 0.3)[:, None],
    "columns graded": lambda rng, d, _: gaussian(rng, d) * powers(rng, d, 0.3),
    "ill-scaled": lambda rng, d, _: powers(rng, d, 0.5)[:, None] * gaussian(rng, d) * powers(rng, d, 0.5),
}


@functools.cache
def problem(kind: str, d: int) -> tuple[Array, Array]:
    """Return factors and the logs of the singular values of their product."""
    rng = np.random.default_rng([d, *kind.encode()])
    factors = np.stack([KINDS[kind](rng, d, layer) for layer in range(DEPTH)])
    logs = dg.log_singular_values(factors, backend="native")
    finite = logs[np.isfinite(logs)]
    return factors, exact_log_singular_values(list(factors), (finite[0] - finite[-1]) / np.log(10))


def assert_logs(got: Array, want: Array, tolerance: float = 1e-10) -> None:
    """Compare logs by relative errors of the logs; infinite ones must be the same."""
    assert got.shape == want.shape
    assert got.dtype == np.float64
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    np.testing.assert_allclose(got[finite], want[finite], rtol=tolerance, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_right(kind: str, backend: str) -> None:
    factors, want = problem(kind, 16)
    got = dg.log_singular_values(factors, backend=backend)
    assert_logs(got, want)
    assert np.all(got[:-1] >= got[1:])


@pytest.mark.parametrize("kind", ["dense", "relu on columns", "columns graded once", "ill-scaled"])
def test_every_value_is_right_at_24(kind: str) -> None:
    factors, want = problem(kind, 24)
    assert_logs(dg.log_singular_values(factors, backend="native"), want)


@pytest.mark.parametrize("seed", range(3))
def test_factors_rotated_out_of_sight(seed: int, backend: str) -> None:
    rng = np.random.default_rng(seed)
    frames = [np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(65)]
    factors = [frames[layer + 1] * 10.0 ** -np.arange(8) @ frames[layer].T for layer in range(64)]
    got = dg.log_singular_values(factors, backend=backend)
    np.testing.assert_allclose(got / np.log(10), -64.0 * np.arange(8), rtol=0, atol=1e-8)


def test_one_factor_has_its_singular_values(backend: str, rng: np.random.Generator) -> None:
    for shape in [(1, 1), (1, 6), (6, 1), (5, 9), (9, 5), (17, 17), (33, 40)]:
        a = rng.standard_normal(shape)
        got = np.exp(dg.log_singular_values([a], backend=backend))
        np.testing.assert_allclose(got, np.linalg.svd(a, compute_uv=False), rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_native_matches_reference_at_every_width(d: int, rng: np.random.Generator) -> None:
    depth = 5 if d > 20 else 12
    factors = [rng.standard_normal((d, d)) * (rng.random(d) < 0.9) for _ in range(depth)]
    got = dg.log_singular_values(factors, backend="native")
    assert_logs(got, dg.log_singular_values(factors, backend="reference"), 1e-10)


@st.composite
def chains(draw: st.DrawFn) -> list[Array]:
    """Chains of rectangles with zero rows and columns, and scales of rows and columns."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 3.0, 40.0, 130.0]))
    empty = draw(st.sampled_from([0.0, 0.1, 0.4]))
    factors = []
    for n, m in itertools.pairwise(sizes):
        scales = [10.0 ** rng.uniform(-spread, spread, size) * (rng.random(size) >= empty) for size in (m, n)]
        factors.append(scales[0][:, None] * rng.standard_normal((m, n)) * scales[1])
    return factors


def width_of_exact(logs: Array) -> float:
    finite = logs[np.isfinite(logs)]
    return float((finite[0] - finite[-1]) / np.log(10)) if len(finite) else 0.0


@settings(max_examples=25)
@given(chains())
def test_chains_of_rectangles(factors: list[Array]) -> None:
    got = dg.log_singular_values(factors, backend="native")
    want = exact_log_singular_values(factors, width_of_exact(got))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isneginf(got), ~finite)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-9, atol=1e-9)
    reference = dg.log_singular_values(factors, backend="reference")
    np.testing.assert_array_equal(np.isneginf(reference), ~finite)
    np.testing.assert_allclose(reference[finite], want[finite], rtol=1e-9, atol=1e-9)


def test_exactly_lost_ranks_are_minus_infinity(backend: str, rng: np.random.Generator) -> None:
    def lost(*factors: Array) -> int:
        logs = dg.log_singular_values(list(factors), backend=backend)
        assert np.all(np.isfinite(logs) | np.isneginf(logs))
        return int(np.sum(np.isneginf(logs)))

    full = [rng.standard_normal((6, 6)) for _ in range(4)]
    assert lost(*full) == 0
    rows, columns = full[1].copy(), full[2].copy()
    rows[[1, 4]] = 0
    columns[:, [0, 4, 5]] = 0
    assert lost(rows) == 2
    assert lost(columns) == 3
    assert lost(full[0], rows, full[3]) == 2
    assert lost(columns, full[0], rows, full[3]) == 3
    # What the rows lose and the columns lose is the same once where they meet, and adds up.
    assert lost(rows, columns) == 4
    assert lost(full[0], rows, columns, full[3]) == 4
    assert lost(full[0], np.zeros((6, 6)), full[3]) == 6
    assert lost(full[0], full[1][:2], full[2][:, :2]) == 4
    assert lost(np.zeros((3, 0)), np.zeros((5, 3))) == 0
    assert lost(np.zeros((0, 3)), np.zeros((5, 0))) == 3
    diagonal = np.diag([0.0, 1.0, 2.0, 3.0, 0.0, 5.0])
    assert lost(diagonal, full[0], diagonal) == 2


def test_a_rank_lost_to_rounding_stays_finite(backend: str, rng: np.random.Generator) -> None:
    thin = rng.standard_normal((7, 3)) @ rng.standard_normal((3, 7))
    logs = dg.log_singular_values([rng.standard_normal((7, 7)), thin, rng.standard_normal((7, 7))], backend=backend)
    assert np.all(np.isfinite(logs))
    assert np.all(logs[3:] < logs[2] - 25)
    assert np.all(logs[3:] > logs[0] - 50)


def test_prefixes_are_the_products_so_far(backend: str, rng: np.random.Generator) -> None:
    factors = rng.standard_normal((3, 9, 6, 6)) * (rng.random((3, 9, 1, 6)) < 0.9)
    got = dg.log_singular_values(factors, prefixes=True, backend=backend)
    assert got.shape == (3, 9, 6)
    for depth in range(9):
        alone = dg.log_singular_values(factors[:, : depth + 1], backend=backend)
        assert_same_bits(np.ascontiguousarray(got[:, depth]), alone, f"prefix {depth}")


def test_prefixes_of_rectangles_are_padded(backend: str, rng: np.random.Generator) -> None:
    shapes = [(3, 5), (7, 3), (2, 7), (6, 2)]
    factors = [rng.standard_normal(shape) for shape in shapes]
    got = dg.log_singular_values(factors, prefixes=True, backend=backend)
    assert got.shape == (4, 5)
    for depth, count in enumerate([3, 5, 2, 5]):
        alone = dg.log_singular_values(factors[: depth + 1], backend=backend)
        assert alone.shape == (count,)
        assert_same_bits(got[depth, :count], alone)
        assert np.all(np.isnan(got[depth, count:]))


def test_float32_factors_are_computed_as_float64(backend: str, rng: np.random.Generator) -> None:
    factors = rng.standard_normal((2, 7, 9, 9)).astype(np.float32)
    got = dg.log_singular_values(factors, backend=backend)
    assert_same_bits(got, dg.log_singular_values(factors.astype(np.float64), backend=backend))


def test_the_range_of_numbers_is_no_limit(backend: str, rng: np.random.Generator) -> None:
    base = rng.standard_normal((20, 5, 5))
    want = dg.log_singular_values(base, backend=backend)
    for factor, tolerance in [(2.0**1000, 1e-13), (2.0**-1000, 1e-13)]:
        got = dg.log_singular_values(base * factor, backend=backend)
        np.testing.assert_allclose(got, want + 20 * np.log(factor), rtol=tolerance)
    # Subnormal numbers are taken for what they are.
    tiny = np.round(base * 1000) * 5e-324
    np.testing.assert_allclose(
        dg.log_singular_values(tiny, backend=backend),
        dg.log_singular_values(np.round(base * 1000), backend=backend) - 20 * 1074 * np.log(2),
        rtol=1e-13,
    )
    # As rows of one factor and columns of the next.
    far = 10.0 ** np.array([140.0, -140.0, 0.0, 70.0, -130.0])
    factors = [far[:, None] * base[0], base[1] * far[::-1], base[2] / far, far[:, None] * base[3] * far]
    assert_logs(dg.log_singular_values(factors, backend=backend), exact_log_singular_values(factors, 1500.0))


def test_the_transposed_product_has_the_same_values(backend: str, rng: np.random.Generator) -> None:
    factors = [rng.standard_normal((n, m)) for n, m in [(8, 6), (9, 8), (7, 9)]]
    transposed = [factor.T for factor in factors[::-1]]
    got, want = (dg.log_singular_values(f, backend=backend) for f in (transposed, factors))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
