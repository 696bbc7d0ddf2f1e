"""The Jacobian as an operator: against the matrix, against itself transposed, and in what takes operators."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from problems import assert_close, assert_same_bits, random_problem

import depthgauge as dg
from depthgauge.equation import BRANCHES


@pytest.mark.parametrize("branch", BRANCHES)
def test_products_are_those_of_the_matrix(
    rng: np.random.Generator, branch: str, backend: str, dtype: np.dtype[Any]
) -> None:
    p = random_problem(rng, dg.Block(branch=branch, activation="silu", post_norm="layer"), 3, 9, 12, 1, dtype)
    columns = dg.jvp(p.block, p.weights, p.x, np.eye(9, dtype=dtype)[:, None, :], backend=backend).output
    matrix = columns[:, 0].T
    operator = dg.jacobian_operator(p.block, p.weights, p.x, backend=backend)
    assert operator.shape == (9, 9)
    assert operator.dtype == dtype
    tolerance = 100 * float(np.finfo(dtype).eps)
    for count in (0, 1, 3, 16, 17, 64, 65, 130):
        vectors = rng.standard_normal((9, count)).astype(dtype)
        for product, want in ((operator.matmat, matrix @ vectors), (operator.rmatmat, matrix.T @ vectors)):
            got = product(vectors)
            assert_close(got, want, tolerance, what=f"{count} vectors")
            assert got.flags.c_contiguous
            assert got.flags.owndata
    for shape in ((9,), (9, 1)):
        vector = rng.standard_normal(shape).astype(dtype)
        assert_close(operator.matvec(vector), matrix @ vector, tolerance)
        assert_close(operator.rmatvec(vector), matrix.T @ vector, tolerance)


def test_the_two_products_are_adjoint(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="gelu"), 5, 17, 33, 1)
    operator = dg.jacobian_operator(p.block, p.weights, p.x[0], backend=backend)
    x, y = rng.standard_normal((2, 17, 20))
    assert_close(y.T @ operator.matmat(x), operator.rmatmat(y).T @ x, 1e-14)


def test_a_vector_has_the_same_bits_in_any_company(rng: np.random.Generator) -> None:
    p = random_problem(rng, dg.Block(), 3, 17, 33, 1)
    operator = dg.jacobian_operator(p.block, p.weights, p.x[0], backend="native")
    vectors = rng.standard_normal((17, 70))
    for product in (operator.matmat, operator.rmatmat):
        together = product(vectors)
        for index in (0, 40, 69):
            assert_same_bits(product(vectors[:, [index]]), together[:, [index]])


def test_estimate_spread_takes_it(backend: str) -> None:
    block = dg.Block(activation="gelu", branch_scale=0.3)
    weights = dg.initialize(block, 6, 40, rng=0)
    x = np.random.default_rng(1).standard_normal(40)
    operator = dg.jacobian_operator(block, weights, x, backend=backend)
    exact = dg.spread(operator.matmat(np.eye(40)), backend=backend)
    estimate = dg.estimate_spread(operator, probes=40)
    assert abs(estimate.effective_rank - exact.effective_rank) < 5 * estimate.standard_error
    assert estimate.log_max == pytest.approx(float(exact.log_max), abs=1e-3)


def test_scipy_takes_it(rng: np.random.Generator, backend: str) -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    p = random_problem(rng, dg.Block(), 4, 12, 20, 1)
    operator = dg.jacobian_operator(p.block, p.weights, p.x, backend=backend)
    matrix = operator.matmat(np.eye(12))
    values = linalg.svds(linalg.aslinearoperator(operator), k=3, return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(values)[::-1], np.linalg.svd(matrix, compute_uv=False)[:3], rtol=1e-10)


def test_it_keeps_the_example_it_was_given(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="gelu"), 2, 5, 7, 1)
    x = p.x.copy()
    operator = dg.jacobian_operator(p.block, p.weights, x, backend=backend)
    x[:] = 0
    vectors = rng.standard_normal((5, 20))
    want = np.concatenate([operator.matmat(vectors[:, :10]), operator.matmat(vectors[:, 10:])], axis=1)
    assert_close(operator.matmat(vectors), want, 1e-14)


def test_it_is_one_line_and_pickles(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 2, 5, 7, 1)
    operator = dg.jacobian_operator(p.block, p.weights, p.x, backend=backend)
    assert repr(operator) == "JacobianOperator(shape=(5, 5), dtype=float64, depth=2)"
    again = pickle.loads(pickle.dumps(operator))
    assert_same_bits(again.matmat(np.eye(5)), operator.matmat(np.eye(5)))


@pytest.mark.parametrize("branch", BRANCHES)
def test_empty_axes(branch: str, backend: str) -> None:
    for depth, width, hidden in [(0, 4, 4), (2, 0, 0), (2, 4, 0)]:
        p = random_problem(np.random.default_rng(0), dg.Block(branch=branch), depth, width, hidden, 1)
        operator = dg.jacobian_operator(p.block, p.weights, p.x, backend=backend)
        for count in (0, 3):
            assert operator.matmat(np.ones((width, count))).shape == (width, count)
            assert operator.rmatmat(np.ones((width, count))).shape == (width, count)


def test_arguments_are_checked() -> None:
    block = dg.Block()
    weights = dg.initialize(block, 2, 4, rng=0)
    for shape in ((2, 4), (3, 1, 4), (5,), ()):
        with pytest.raises(ValueError, match=r"x must be one example, shape \(4,\) or \(1, 4\); got"):
            dg.jacobian_operator(block, weights, np.zeros(shape), backend="reference")
    with pytest.raises(TypeError, match="x is float32 but weights is float64"):
        dg.jacobian_operator(block, weights, np.zeros(4, np.float32), backend="reference")
    with pytest.raises(ValueError, match=r"takes one stack, but the weights have replicate axes \(2,\)"):
        dg.jacobian_operator(block, dg.initialize(block, 2, 4, rng=[0, 1]), np.zeros(4), backend="reference")
    operator = dg.jacobian_operator(block, weights, np.zeros(4), backend="reference")
    with pytest.raises(ValueError, match=r"X must have shape \(4, p\), vectors as columns; got \(4,\)"):
        operator.matmat(np.zeros(4))
    with pytest.raises(ValueError, match=r"y must have shape \(4,\) or \(4, 1\); got \(4, 2\)"):
        operator.rmatvec(np.zeros((4, 2)))
    with pytest.raises(TypeError, match="Y is float32 but the operator is float64"):
        operator.rmatmat(np.zeros((4, 2), np.float32))
