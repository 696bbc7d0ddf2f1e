"""What may be estimated: matrices of any layout, and objects with products."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from operators import Products, assert_same, rotated

import depthgauge as dg

Array = npt.NDArray[Any]


def test_products_alone_give_what_the_matrix_gives(rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    for matrix in (rng.standard_normal((80, 50)), rng.standard_normal((50, 80)), rotated(np.exp(-np.arange(70) / 3))):
        operator = Products(matrix.astype(dtype))
        estimate = dg.estimate_spread(operator)
        assert operator.applications == estimate.applications
        plain = dg.estimate_spread(operator.matrix)
        tolerance = 1e3 * float(np.finfo(dtype).eps)
        assert estimate.effective_rank == pytest.approx(plain.effective_rank, rel=tolerance)
        assert estimate.log_max == pytest.approx(plain.log_max, abs=tolerance)


def test_scipy_operators_are_read(rng: np.random.Generator) -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    sparse = pytest.importorskip("scipy.sparse")
    first, second = rng.standard_normal((60, 50)), rng.standard_normal((50, 70))
    product = linalg.aslinearoperator(first) @ linalg.aslinearoperator(second)
    estimate, plain = dg.estimate_spread(product), dg.estimate_spread(first @ second)
    assert estimate.effective_rank == pytest.approx(plain.effective_rank, rel=1e-9)
    by_vectors = linalg.LinearOperator((60, 50), matvec=lambda v: first @ v, rmatvec=lambda u: first.T @ u, dtype=float)
    assert dg.estimate_spread(by_vectors).effective_rank == pytest.approx(
        dg.estimate_spread(first).effective_rank, rel=1e-9
    )
    bidiagonal = sparse.diags([np.arange(1.0, 41.0), np.ones(39)], [0, 1])
    with pytest.raises(TypeError, match=r"operator of type scipy.*aslinearoperator"):
        dg.estimate_spread(bidiagonal)
    of_sparse = dg.estimate_spread(linalg.aslinearoperator(bidiagonal))
    assert of_sparse.effective_rank == pytest.approx(dg.estimate_spread(bidiagonal.toarray()).effective_rank, rel=1e-9)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_read(layout: str, rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    matrix = rng.standard_normal((70, 60)).astype(dtype)
    before = matrix.copy()
    changed = LAYOUTS[layout](matrix)
    np.testing.assert_array_equal(changed, matrix)
    changed.flags.writeable = False
    got, want = dg.estimate_spread(changed), dg.estimate_spread(matrix)
    assert got.effective_rank == pytest.approx(want.effective_rank, rel=1e3 * float(np.finfo(dtype).eps))
    np.testing.assert_array_equal(matrix, before)


def test_a_broadcast_row_has_rank_one() -> None:
    estimate = dg.estimate_spread(np.broadcast_to(np.arange(1.0, 41.0), (30, 40)))
    assert estimate.effective_rank == pytest.approx(1.0, rel=1e-9)
    assert estimate.log_max == pytest.approx(0.5 * np.log(30 * np.sum(np.arange(1.0, 41.0) ** 2)), rel=1e-12)


def test_lists_and_tensors_are_read(rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((30, 20))
    plain = dg.estimate_spread(matrix)
    assert_same(dg.estimate_spread(matrix.tolist()), plain)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(matrix)
    assert_same(dg.estimate_spread(tensor), plain)
    with pytest.raises(TypeError, match=r"operator is a tensor that requires grad; pass operator\.detach"):
        dg.estimate_spread(tensor.requires_grad_())


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (np.eye(4, dtype=np.float16), "operator has dtype float16"),
        (np.eye(4, dtype=int), "operator has dtype int64"),
        (np.eye(4) > 0, "operator has dtype bool"),
        (np.eye(4) * 1j, "operator has dtype complex128"),
        (np.eye(4).astype(object), "operator has dtype object"),
        (np.ma.masked_less(np.eye(4), 0.5), "operator is a masked array"),
        (None, "operator"),
        ("matrix", "operator"),
        (Products(np.eye(4, dtype=int)), "operator.dtype=int64 is not supported"),
        (Products(np.eye(4, dtype=np.float16)), "operator.dtype=float16"),
    ],
)
def test_what_is_no_operator_is_refused(operator: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        dg.estimate_spread(operator)


def test_wrong_shapes_are_refused(rng: np.random.Generator) -> None:
    for shape in ((), (4,), (2, 4, 4)):
        with pytest.raises(ValueError, match=r"operator must be one matrix, shape \(m, n\); got "):
            dg.estimate_spread(np.ones(shape))
    operator: Any = Products(rng.standard_normal((30, 20)))
    for wrong in ((30, 20, 1), 30, None):
        operator.shape = wrong
        with pytest.raises(ValueError, match=rf"operator\.shape must be \(m, n\); got {re.escape(repr(wrong))}"):
            dg.estimate_spread(operator)
    operator.shape = (40, 20)
    with pytest.raises(
        ValueError, match=r"operator\.matmat\(X\) must return shape \(40, 16\) for 16 columns; got \(30, 16\)"
    ):
        dg.estimate_spread(operator)


def test_an_operator_without_a_dtype_is_refused(rng: np.random.Generator) -> None:
    operator: Any = Products(rng.standard_normal((30, 20)))
    operator.dtype = None
    with pytest.raises(TypeError, match=r"operator\.dtype=None is not supported"):
        dg.estimate_spread(operator)
    del operator.dtype
    with pytest.raises(TypeError, match=r"operator\.dtype=None is not supported"):
        dg.estimate_spread(operator)


def test_wrong_products_are_refused(rng: np.random.Generator) -> None:
    operator: Any = Products(rng.standard_normal((30, 30)))
    operator.rmatmat = operator.matmat
    with pytest.raises(
        ValueError, match=r"operator\.rmatmat\(Y\) must multiply by the transpose of what operator\.matm"
    ):
        dg.estimate_spread(operator)
    operator = Products(rng.standard_normal((30, 30)))
    operator.rmatmat = lambda y: (operator.matrix.T @ y).astype(complex)
    with pytest.raises(TypeError, match=r"operator\.rmatmat\(Y\) has dtype complex128"):
        dg.estimate_spread(operator)
