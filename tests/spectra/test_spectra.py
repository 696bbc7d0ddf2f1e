"""Singular values and spreads of stacks: accuracy, invariances, and what bad matrices get."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exact_svd import exact_singular_values, kinds_of_matrices
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from layouts import BAD_ARRAYS, LAYOUTS, Capsule, Exporter
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


def gaussians(count: int, rows: int, columns: int, dtype: Any, seed: int = 0) -> Array:
    drawn = np.random.default_rng([seed, rows, columns]).standard_normal((count, rows, columns))
    return drawn.astype(dtype)


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


def test_poisoned_members_are_nan_and_their_neighbours_what_they_are_alone(backend: str) -> None:
    a = np.stack([np.diag([3.0, 2.0, 1.0]), np.full((3, 3), np.nan), np.eye(3)])
    s = dg.spread(a, backend=backend)
    np.testing.assert_allclose(
        s.singular_values, [[3.0, 2.0, 1.0], [np.nan, np.nan, np.nan], [1.0, 1.0, 1.0]], rtol=4e-16
    )
    np.testing.assert_allclose(s.effective_rank, [2.7494593, np.nan, 3], rtol=1e-7)
    assert s.converged.all()
    for name, array in s.to_dict().items():
        if name not in ("full_rank", "converged"):
            assert np.all(np.isnan(array[1])), name
    for member in (0, 2):
        alone = dg.spread(a[member], backend=backend)
        for name, array in s.to_dict().items():
            assert_same_bits(array[member], getattr(alone, name), name)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(2, 2), (4, 4), (9, 9), (33, 33), (97, 97), (40, 7), (7, 40)], ids=str)
def test_one_bad_entry_costs_its_own_matrix_alone(
    shape: tuple[int, int], poison: float, dtype: np.dtype[Any], backend: str
) -> None:
    rng = np.random.default_rng(1)
    count = 19 if shape[0] < 90 else 3
    a = gaussians(count, *shape, dtype)
    clean = dg.singular_values(a, backend=backend)
    bad = rng.permutation(count)[: count // 3]
    for member in bad:
        a[member, rng.integers(shape[0]), rng.integers(shape[1])] = poison
    got = dg.singular_values(a, backend=backend)
    assert np.all(np.isnan(got[bad]))
    good = np.setdiff1d(np.arange(count), bad)
    assert_same_bits(got[good], clean[good])


def test_non_finite_members_at_every_place(backend: str, dtype: np.dtype[Any]) -> None:
    a = np.broadcast_to(gaussians(1, 5, 6, dtype)[0], (5, 6, 5, 6)).copy()
    rows, columns = np.indices((5, 6))
    a[rows, columns, rows, columns] = np.nan
    assert np.all(np.isnan(dg.singular_values(a, backend=backend)))


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
    turned = orthogonal(rng, 1, size) @ a @ orthogonal(rng, 1, size)
    for changed in (a[:, rows][:, :, columns], -a, a.swapaxes(1, 2), a[:, ::-1], turned):
        assert np.all(errors(dg.singular_values(changed, backend=backend), want) <= limit)


def test_an_oblong_matrix_and_its_transpose_agree_to_the_bit(dtype: np.dtype[Any], backend: str) -> None:
    for rows, columns in ((1, 5), (3, 4), (7, 30), (32, 33), (20, 130), (3, 2000)):
        a = gaussians(5, rows, columns, dtype)
        turned = np.ascontiguousarray(a.swapaxes(1, 2))
        assert_same_bits(dg.singular_values(turned, backend=backend), dg.singular_values(a, backend=backend))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_any_layout_gives_the_same_bits(layout: str, dtype: np.dtype[Any], backend: str) -> None:
    for shape in ((7, 5, 9), (9, 5), (2, 3, 16, 16), (3, 33, 33), (1, 130, 129)):
        a = np.random.default_rng(2).standard_normal(shape).astype(dtype)
        before = a.copy()
        got = dg.singular_values(LAYOUTS[layout](a), backend=backend)
        assert_same_bits(got, dg.singular_values(before, backend=backend), layout)
        assert_same_bits(a, before)


def test_broadcast_stacks_are_read(dtype: np.dtype[Any], backend: str) -> None:
    a = gaussians(1, 6, 5, dtype)[0]
    alone = dg.singular_values(a, backend=backend)
    repeated = dg.singular_values(np.broadcast_to(a, (2, 10, 6, 5)), backend=backend)
    assert_same_bits(repeated, np.tile(alone, (2, 10, 1)))
    ones = np.broadcast_to(dtype.type(1), (3, 4, 4))
    np.testing.assert_allclose(dg.singular_values(ones, backend=backend)[:, 0], 4, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (8, 8), (16, 16), (33, 33), (96, 96), (129, 129), (60, 9)], ids=str)
def test_batch_and_threads_change_no_bit(
    shape: tuple[int, int], dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    count = 37 if shape[0] < 90 else 9
    a = gaussians(count, *shape, dtype)
    a[5] *= dtype.type(1e-30)  # another scale, another number of steps
    a[2] = 0
    want = dg.spread(a, backend="native", threads=1).to_dict()
    for threads in (2, 3, 7):
        for name, array in dg.spread(a, backend="native", threads=threads).to_dict().items():
            assert_same_bits(array, want[name], f"{name}, {threads} threads")
    for part in (slice(0, 1), slice(5, 6), slice(3, 20), slice(None, None, -1), slice(1, None, 3)):
        for name, array in dg.spread(a[part], backend="native").to_dict().items():
            assert_same_bits(array, np.ascontiguousarray(want[name][part]), f"{name}, {part}")


@pytest.mark.parametrize("shape", [(512, 512), (700, 300)], ids=str)
def test_a_lone_large_matrix_has_the_same_bits_on_any_number_of_threads(
    shape: tuple[int, int], dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    a = gaussians(2, *shape, dtype)
    want = dg.singular_values(a, backend="native", threads=1)
    for threads in (1, 2, 5):
        assert_same_bits(dg.singular_values(a[0], backend="native", threads=threads), want[0], f"{threads} threads")
    assert_same_bits(dg.singular_values(a, backend="native", threads=7), want)


@pytest.mark.parametrize("shape", [(0, 3, 3), (3, 0, 4), (2, 4, 0), (0, 0), (0, 5), (5, 0), (2, 0, 3, 2)], ids=str)
def test_empty_axes(shape: tuple[int, ...], dtype: np.dtype[Any], backend: str) -> None:
    a = np.zeros(shape, dtype)
    full = min(shape[-2:])
    got = dg.singular_values(a, backend=backend)
    assert got.shape == (*shape[:-2], full)
    assert got.dtype == dtype
    s = dg.spread(a, backend=backend)
    assert s.shape == shape[:-2]
    assert s.singular_values.shape == s.log_singular_values.shape == got.shape
    assert np.all(s.full_rank == full)
    assert np.all(s.converged)
    for name, array in s.to_dict().items():
        if name in ("singular_values", "log_singular_values", "full_rank", "converged"):
            continue
        assert array.shape == shape[:-2]
        assert np.all(array == 0) if name == "effective_rank" else np.all(np.isnan(array)), name
    assert "shape=" in repr(s)


def test_results_own_their_memory(dtype: np.dtype[Any], backend: str) -> None:
    a = gaussians(6, 5, 4, dtype).reshape(2, 3, 5, 4)
    found = {"": dg.singular_values(a, backend=backend)}
    for s in (dg.spread(a, backend=backend), dg.spread_ragged([a[0, 0], a[1, 0].T, a[0, 1, 1:]], backend=backend)):
        found |= s.to_dict()
        for name, array in found.items():
            assert array.flags.owndata, name
            assert array.flags.writeable, name
            assert array.flags.c_contiguous, name
            assert array.dtype == {"": dtype, "singular_values": dtype, "full_rank": np.int64, "converged": bool}.get(
                name, np.float64
            )
        assert s.singular_values.dtype == dtype


def test_measures_of_one_matrix_are_scalars(backend: str) -> None:
    s = dg.spread([[3.0, 0.0], [0.0, 4.0]], backend=backend)
    assert isinstance(s.effective_rank, float)
    assert isinstance(s.condition, float)
    assert s.shape == ()
    assert s.full_rank == 2
    assert s.converged


def test_spread_is_plain_data(backend: str) -> None:
    a = gaussians(6, 5, 4, np.float32).reshape(2, 3, 5, 4)
    a[0, 1, 0, 0] = np.nan
    s = dg.spread(a, backend=backend)
    text = repr(s)
    assert text.startswith("Spread(shape=(2, 3), singular_values=float32[2, 3, 4], effective_rank=[")
    assert "\n" not in text
    assert repr(dg.spread(a[0, 0], backend=backend)).startswith("Spread(shape=(), singular_values=float32[4]")
    copy = pickle.loads(pickle.dumps(s))
    assert list(s.to_dict()) == list(copy.to_dict())
    for name, array in s.to_dict().items():
        assert_same_bits(getattr(copy, name), array, name)
    with pytest.raises(AttributeError):
        s.condition = s.log_max  # type: ignore[misc]
    assert s != copy


def test_warnings_and_floating_point_traps_never_surface(backend: str) -> None:
    a = np.zeros((6, 4, 4))
    a[1] = np.finfo(float).max
    a[2] = np.diag([1e300, 1e-300, 5e-324, 0])
    a[3, 1, 1] = np.inf
    a[4, 1, 1] = np.nan
    a[5] = np.eye(4)
    with np.errstate(all="raise"):
        dg.singular_values(a, backend=backend)
        s = dg.spread(a, backend=backend)
        dg.spread(singular_values=s.singular_values)
        dg.spread(log_singular_values=s.log_singular_values)
        dg.spread_ragged([*a, a[1, :, :2], a[1, :0]], backend=backend)
    assert s.singular_values[1, 0] == np.inf


RAGGED = [(4, 4), (3, 5), (5, 3), (1, 1), (0, 2), (4, 4), (30, 7), (7, 30), (7, 30), (33, 33)]


def test_ragged_members_are_what_they_are_alone(dtype: np.dtype[Any], backend: str) -> None:
    rng = np.random.default_rng(5)
    matrices = [rng.standard_normal(shape).astype(dtype) for shape in RAGGED]
    matrices[5][1, 1] = np.nan
    matrices[2] = np.asfortranarray(matrices[2])
    matrices[6] = matrices[6][::-1, ::-1]
    s = dg.spread_ragged(matrices, backend=backend)
    assert s.shape == (len(RAGGED),)
    assert s.singular_values.shape == (len(RAGGED), 33)
    for index, matrix in enumerate(matrices):
        alone = dg.spread(matrix, backend=backend)
        full = min(matrix.shape)
        for name, array in s.to_dict().items():
            member = array[index]
            if name.endswith("singular_values"):
                assert np.all(np.isnan(member[full:]))
                member = member[:full]
            assert_same_bits(member, getattr(alone, name), f"{name} of {RAGGED[index]}")


def test_ragged_takes_any_iterable_of_matrices(backend: str) -> None:
    a = gaussians(4, 3, 5, np.float32)
    want = dg.spread(a, backend=backend)
    for matrices in (a, list(a), tuple(a), iter(a)):
        got = dg.spread_ragged(matrices, backend=backend)
        for name, array in want.to_dict().items():
            assert_same_bits(getattr(got, name), array, name)
    nothing = dg.spread_ragged([], backend=backend)
    assert nothing.shape == (0,)
    assert nothing.singular_values.shape == (0, 0)


def test_ragged_refusals() -> None:
    for bad, message in (
        ([np.eye(2), np.ones(3)], r"matrices\[1\] must have shape \(n, k\); got \(3,\)"),
        (np.eye(3), r"matrices\[0\] must have shape \(n, k\); got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dg.spread_ragged(bad, backend="reference")
    with pytest.raises(TypeError, match=r"matrices\[1\] is float32 but matrices\[0\] is float64"):
        dg.spread_ragged([np.eye(2), np.eye(3, dtype=np.float32)], backend="reference")
    with pytest.raises(TypeError, match=r"matrices\[1\] has dtype int64"):
        dg.spread_ragged([np.eye(2), np.eye(2, dtype=np.int64)], backend="reference")
    with pytest.raises(TypeError, match="matrices must be a list of matrices; got int"):
        dg.spread_ragged(3, backend="reference")  # type: ignore[arg-type]


CALLS: dict[str, Callable[..., object]] = {
    "a": dg.singular_values,
    "a of spread": dg.spread,
    "singular_values": lambda value, **options: dg.spread(singular_values=value, **options),
    "log_singular_values": lambda value, **options: dg.spread(log_singular_values=value, **options),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("value", "message"), BAD_ARRAYS, ids=[message for _, message in BAD_ARRAYS])
def test_what_is_not_float_is_refused_by_name(value: Any, message: str, call: str) -> None:
    if value is None and call != "a":
        return  # stands for an argument that is not given
    name = call.split()[0]
    with pytest.raises(TypeError, match=name) as caught:
        CALLS[call](value, backend="reference")
    if message != "x":
        assert message in str(caught.value)


def test_wrong_arguments_say_what_they_should_be() -> None:
    for call in (dg.singular_values, dg.spread):
        for bad, shape in ((np.ones(3), r"\(3,\)"), (np.float64(2.0), r"\(\)"), ([1.0, 2.0], r"\(2,\)")):
            message = rf"^a must have shape \(\.\.\., n, k\), a matrix or a stack of them; got {shape}$"
            with pytest.raises(ValueError, match=message):
                call(bad, backend="reference")
    with pytest.raises(ValueError, match=r"^accuracy='relativ' is unknown; did you mean 'relative'\?"):
        dg.singular_values(np.eye(2), accuracy="relativ")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="accuracy must be a string"):
        dg.singular_values(np.eye(2), accuracy=1e-9)  # type: ignore[arg-type]
    for options, kind, message in (
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": 1.5}, TypeError, "threads must be an integer"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not a backend"),
    ):
        for accuracy in ("absolute", "relative"):
            with pytest.raises(kind, match=message):
                dg.singular_values(np.eye(2), accuracy=accuracy, **options)
        with pytest.raises(kind, match=message):
            dg.spread(singular_values=[1.0], **options)
        with pytest.raises(kind, match=message):
            dg.spread_ragged([np.eye(2)], **options)


def test_spread_takes_one_argument() -> None:
    with pytest.raises(ValueError, match="exactly one of a, singular_values, log_singular_values; got none of them"):
        dg.spread()
    with pytest.raises(ValueError, match="got a and singular_values"):
        dg.spread(np.eye(2), singular_values=[1.0, 1.0])
    with pytest.raises(ValueError, match=r"^singular_values must be >= 0; got -1\.0"):
        dg.spread(singular_values=[2.0, -1.0, np.nan])
    for name in ("singular_values", "log_singular_values"):
        with pytest.raises(ValueError, match=rf"^{name} must have shape \(\.\.\., p\)"):
            CALLS[name](np.float64(3.0))


@pytest.mark.parametrize("wrapper", [Exporter, Capsule])
def test_objects_of_other_libraries_are_read(wrapper: Any, backend: str) -> None:
    a = gaussians(3, 4, 5, np.float64)
    assert_same_bits(dg.singular_values(wrapper(a), backend=backend), dg.singular_values(a, backend=backend))
    got = dg.spread_ragged([wrapper(a[0])], backend=backend)
    assert_same_bits(got.singular_values[0], dg.singular_values(a[0], backend=backend))


def test_torch_tensors_are_read_and_gradients_refused(backend: str) -> None:
    torch = pytest.importorskip("torch")
    a = gaussians(3, 4, 5, np.float32)
    tensor = torch.from_numpy(a.copy())
    assert_same_bits(
        dg.singular_values(tensor.mT, backend=backend), dg.singular_values(a.swapaxes(1, 2), backend=backend)
    )
    with pytest.raises(TypeError, match=r"a is a tensor that requires grad; pass a\.detach"):
        dg.spread(tensor.requires_grad_(), backend=backend)


def test_lists_of_floats_are_float64(backend: str) -> None:
    assert_same_bits(
        dg.singular_values([[1.0, 2.0], [3.0, 4.0]], backend=backend),
        dg.singular_values(np.array([[1.0, 2.0], [3.0, 4.0]]), backend=backend),
    )


def test_a_member_that_lapack_gives_up_on_costs_its_own_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    svd = np.linalg.svd

    def stubborn(a: Array, **options: Any) -> Any:
        if np.any(a == 1.5):
            raise np.linalg.LinAlgError("SVD did not converge")
        return svd(a, **options)

    a = gaussians(4, 3, 3, np.float64)
    want = dg.singular_values(a, backend="reference")
    a[2] = 1.5
    monkeypatch.setattr(np.linalg, "svd", stubborn)
    s = dg.spread(a, backend="reference")
    assert s.converged.tolist() == [True, True, False, True]
    assert_same_bits(s.singular_values[[0, 1, 3]], want[[0, 1, 3]])
    assert np.all(np.isnan(s.singular_values[2]))
    assert np.isnan(s.effective_rank[2])
    assert "converged=False" in repr(s)
