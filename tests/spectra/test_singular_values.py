"""Singular values: accuracy, and what changes nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_svd import exact_singular_values, gaussians, kinds_of_matrices
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from problems import Array, assert_same_bits

import depthgauge as dg

# Errors in eps times the largest value, over the root of the larger dimension.
BOUND = 8


# Small matrices of clustered values are harder on LAPACK, with vectors or without.
LAPACK_BOUND = 64


# One of each way there may be to compute: lanes of every fill, vectors along columns, tall ones reduced first.
SQUARE = (*range(1, 18), 31, 32, 33, 47, 66)


OBLONG = ((1, 7), (7, 1), (5, 33), (33, 5), (16, 17), (17, 16), (48, 32), (70, 32), (32, 70), (2000, 3))


LARGE = (96, 97, 128, 129, 256)


def errors(got: Array, want: Array) -> Array:
    """Return the largest error of each matrix, in eps times its largest value."""
    largest = np.where(want[..., :1] > 0, want[..., :1], 1)
    scaled: Array = np.max(np.abs(got - want) / largest, axis=-1, initial=0) / np.finfo(got.dtype).eps
    return scaled


def limit_of(size: int, backend: str) -> float:
    ours = BOUND * float(np.sqrt(size))
    return max(ours, LAPACK_BOUND) if backend == "reference" else ours


def orthogonal(rng: np.random.Generator, count: int, size: int) -> Array:
    return np.linalg.qr(rng.standard_normal((count, size, size)))[0]


@pytest.mark.parametrize("shape", [(5, 5), (8, 3), (4, 9)], ids=str)
def test_the_truth_is_true(shape: tuple[int, int]) -> None:
    mp = pytest.importorskip("mpmath")
    for kind, a in kinds_of_matrices(np.random.default_rng(shape), *shape).items():
        with mp.workdps(50):
            want = mp.svd_r(mp.matrix(a.tolist()), compute_uv=False)
            for got, value in zip(exact_singular_values(a), want, strict=True):
                mantissa, exponent = np.frexp(got)  # mpmath reads a long double as a double
                high = float(mantissa)
                exact = mp.ldexp(mp.mpf(high) + mp.mpf(float(mantissa - high)), int(exponent))
                assert abs(exact - value) <= 8 * float(np.finfo(np.longdouble).eps) * want[0], kind
        single = a.astype(np.float32)
        np.testing.assert_allclose(
            exact_singular_values(single),
            exact_singular_values(single.astype(np.float64)).astype(np.float64),
            rtol=0,
            atol=1e-14 * float(want[0]),
        )


@pytest.mark.parametrize("shape", [*((size, size) for size in SQUARE), *OBLONG], ids=str)
def test_errors_of_every_kind_of_matrix(shape: tuple[int, int], dtype: np.dtype[Any], backend: str) -> None:
    kinds = kinds_of_matrices(np.random.default_rng(shape), *shape)
    a = np.stack(list(kinds.values())).astype(dtype)
    got = dg.singular_values(a, backend=backend)
    assert got.dtype == dtype
    assert np.all(np.diff(got) <= 0)
    assert np.all(got >= 0)
    found = errors(got, exact_of(shape, dtype, a))
    limit = limit_of(max(shape), backend)
    assert np.all(found <= limit), {kind: error for kind, error in zip(kinds, found, strict=True) if error > limit}


_EXACT: dict[Any, Array] = {}


def exact_of(shape: tuple[int, int], dtype: np.dtype[Any], a: Array) -> Array:
    """Return the exact values, once for all backends."""
    key = shape, dtype
    if key not in _EXACT:
        _EXACT[key] = exact_singular_values(a)
    return _EXACT[key]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8, 12, 20])
def test_clusters_converge(size: int, dtype: np.dtype[Any], backend: str) -> None:
    """Values that agree to anything between all digits and four, about as hard as values can be."""
    rng = np.random.default_rng(size)
    count = 600 // size
    values = 1 + 10.0 ** rng.uniform(-17, -4, (count, 1)) * rng.standard_normal((count, size))
    a = ((orthogonal(rng, count, size) * values[:, None]) @ orthogonal(rng, count, size)).astype(dtype)
    s = dg.spread(a, backend=backend)
    assert s.converged.all()
    assert np.max(errors(s.singular_values, exact_singular_values(a))) <= limit_of(size, backend)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 11, 33])
def test_bidiagonals_of_entries_of_all_sizes(size: int, dtype: np.dtype[Any], backend: str) -> None:
    """Rows of zeros and of small numbers come anywhere, and the large numbers may all be off the diagonal."""
    rng = np.random.default_rng(size)
    entries = np.array([1, 1e-4, 1e-8, 1e-12, 1e-16, 1e-30, 0])
    count = 1200 // size
    a = np.zeros((count, size, size))
    at = np.arange(size)
    a[:, at, at] = rng.choice(entries, (count, size))
    a[:, at[:-1], at[1:]] = rng.choice(entries, (count, size - 1))
    a[: count // 4, at, at] *= 1e-20
    a = np.concatenate([a, a.swapaxes(1, 2)]).astype(dtype)
    s = dg.spread(a, backend=backend)
    assert s.converged.all()
    assert np.max(errors(s.singular_values, exact_singular_values(a))) <= limit_of(size, backend)


@pytest.mark.parametrize("size", LARGE)
def test_large_matrices(size: int, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(size)
    values = np.sort(rng.random((1, size)) + 0.01)[:, ::-1]
    left, right = orthogonal(rng, 2, size)
    a = ((left * values[:, None]) @ right).astype(dtype)
    # The construction rounds, and so does LAPACK, by which float32 is judged in double.
    want = values if dtype == np.float64 else np.linalg.svd(a.astype(np.float64), compute_uv=False)
    assert np.max(errors(dg.singular_values(a, backend="native"), want)) <= BOUND * np.sqrt(size)


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
        elements=st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-8, 1e8, 3e-17, 1e-300, -5e-324]), st.floats(-1e9, 1e9)),
    )
)
def test_errors_of_anything_finite(a: Array) -> None:
    want = exact_singular_values(a)
    for backend in dg.available_backends():
        got = dg.singular_values(a, backend=backend)
        slack = 4 * 5e-324 / np.where(want[..., 0] > 0, want[..., 0], 1) / np.finfo(np.float64).eps
        assert np.all(errors(got, want) <= limit_of(max(a.shape), backend) + slack)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 16, 33, 64, 100])
def test_matrices_whose_values_are_plain(size: int, dtype: np.dtype[Any], backend: str) -> None:
    rng = np.random.default_rng(size)
    (q,) = orthogonal(rng, 1, size)
    rank_two = rng.integers(-3, 4, (size, 2)) @ rng.integers(-3, 4, (2, size))
    a = np.stack([np.zeros((size, size)), np.ones((size, size)), np.eye(size), q, rank_two, 5 * np.eye(size)[::-1]])
    s = dg.spread(a.astype(dtype), backend=backend)
    one = np.zeros(size)
    one[0] = size
    limit = limit_of(size, backend) * float(np.finfo(dtype).eps)
    assert_same_bits(s.singular_values[0], np.zeros(size, dtype))
    for member, want in ((1, one), (2, np.ones(size)), (3, np.ones(size)), (5, np.full(size, 5))):
        np.testing.assert_allclose(s.singular_values[member], want, rtol=0, atol=limit * want[0])
    assert np.all(s.singular_values[4, 2:] <= limit * s.singular_values[4, 0])
    assert s.effective_rank[0] == 0
    np.testing.assert_allclose(s.effective_rank[[2, 3, 5]], size, rtol=limit)
    assert s.effective_rank[1] == pytest.approx(1, abs=1e2 * size * limit)
    assert s.log_max[0] == -np.inf
    assert np.isnan(s.condition[0])
    assert np.isnan(s.log_spread[0])


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (16, 16), (33, 33), (5, 12), (64, 64), (97, 97)], ids=str)
def test_powers_of_two_scale_values_bit_for_bit(shape: tuple[int, int], dtype: np.dtype[Any], backend: str) -> None:
    a = gaussians(3, *shape, dtype)
    s = dg.spread(a, backend=backend)
    limits = np.finfo(dtype)
    for power in (1, -1, 7, int(limits.maxexp) - 12, int(limits.minexp) + 40):
        factor = dtype.type(2) ** power
        scaled = dg.spread(a * factor, backend=backend)
        assert_same_bits(scaled.singular_values, s.singular_values * factor)
        for name in ("effective_rank", "effective_rank_of_squares", "stable_rank", "participation_ratio", "condition"):
            assert_same_bits(getattr(scaled, name), getattr(s, name), name)
        np.testing.assert_allclose(scaled.log_max - s.log_max, power * np.log(2), rtol=1e-13)


def test_the_ends_of_the_range(dtype: np.dtype[Any], backend: str) -> None:
    limits = np.finfo(dtype)
    largest = np.full((4, 4), limits.max, dtype)
    s = dg.spread(largest, backend=backend)
    assert s.singular_values[0] == np.inf  # four times the largest number there is
    assert s.effective_rank == pytest.approx(1, abs=1e3 * float(limits.eps))
    assert s.log_max == pytest.approx(np.log(float(limits.max)) + np.log(4))
    tight = 4 * float(limits.eps)
    diagonal = np.diag(np.full(5, limits.max / 2, dtype))
    np.testing.assert_allclose(dg.singular_values(diagonal, backend=backend), np.diagonal(diagonal), rtol=tight)
    tiny = np.diag(np.full(5, limits.smallest_subnormal, dtype))
    s = dg.spread(tiny, backend=backend)
    assert_same_bits(s.singular_values, np.full(5, limits.smallest_subnormal, dtype))
    assert s.effective_rank == pytest.approx(5, rel=tight)
    assert s.condition == pytest.approx(1, rel=tight)
    subnormal = (gaussians(1, 6, 6, dtype)[0] * dtype.type(1000)).round() * limits.smallest_subnormal
    s, normal = (dg.spread(x, backend=backend) for x in (subnormal, subnormal / limits.smallest_subnormal))
    assert_same_bits(s.effective_rank, normal.effective_rank)
    assert_same_bits(s.condition, normal.condition)


@pytest.mark.parametrize("size", [3, 8, 33, 70])
def test_rotations_and_permutations_change_nothing_but_rounding(size: int, backend: str) -> None:
    rng = np.random.default_rng(size)
    kinds = kinds_of_matrices(rng, size, size)
    a = np.stack(list(kinds.values()))
    want = dg.singular_values(a, backend=backend)
    limit = 3 * limit_of(size, backend)
    rows, columns = rng.permutation(size), rng.permutation(size)
    rotated = orthogonal(rng, 1, size) @ a @ orthogonal(rng, 1, size)
    for changed in (a[:, rows][:, :, columns], -a, a.swapaxes(1, 2), a[:, ::-1], rotated):
        assert np.all(errors(dg.singular_values(changed, backend=backend), want) <= limit)


def test_an_oblong_matrix_and_its_transpose_agree_to_the_bit(dtype: np.dtype[Any], backend: str) -> None:
    for rows, columns in ((1, 5), (3, 4), (7, 30), (32, 33), (20, 130), (3, 2000)):
        a = gaussians(5, rows, columns, dtype)
        transposed = np.ascontiguousarray(a.swapaxes(1, 2))
        assert_same_bits(dg.singular_values(transposed, backend=backend), dg.singular_values(a, backend=backend))
