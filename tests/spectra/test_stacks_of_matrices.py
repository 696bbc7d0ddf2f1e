"""Singular values and spreads of stacks: bad members, layouts, batches, threads, and the arrays that come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_svd import gaussians
from layouts import LAYOUTS
from problems import Array, assert_same_bits

import depthgauge as dg


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
