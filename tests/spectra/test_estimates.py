"""The spread from products: quadrature, the top part, standard errors, and what operators may be."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from interrupts import needs_signals, output_after_control_c
from problems import effective_rank

import depthgauge as dg
from depthgauge.spectra.lanczos import Bidiagonalization
from depthgauge.spectra.linear_operators import read_operator
from depthgauge.spectra.range_finder import TopPart

Array = npt.NDArray[Any]

# Two-sided 95 % quantile of Student's t with 15 degrees of freedom, for 16 probes.
T_15 = 2.1314


class Products:
    """An operator with its products alone, that counts the vectors it is applied to."""

    def __init__(self, matrix: Array) -> None:
        self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype
        self.applications = 0

    def matmat(self, x: Array) -> Array:
        self.applications += x.shape[1]
        return self.matrix @ x

    def rmatmat(self, y: Array) -> Array:
        self.applications += y.shape[1]
        return self.matrix.T @ y


def rotated(values: Array, seed: int = 0) -> Array:
    """A dense matrix with these singular values."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((len(values), len(values))))[0] for _ in range(2))
    matrix: Array = (left * values) @ right
    return matrix


def relu_product(depth: int, width: int, seed: int = 0) -> Array:
    """The Jacobian of a plain ReLU stack."""
    rng = np.random.default_rng(seed)
    jacobian, state = np.eye(width), rng.standard_normal(width)
    for _ in range(depth):
        weights = rng.standard_normal((width, width)) * np.sqrt(2 / width)
        z = weights @ state
        state = np.maximum(z, 0)
        jacobian = np.where(z[:, None] > 0, weights @ jacobian, 0)
    return jacobian


def bidiagonalized(matrix: Array, start: Array, steps: int) -> Bidiagonalization:
    operator = read_operator(matrix)
    nothing = TopPart(np.empty(0), np.empty((0, operator.rows)), np.empty((0, operator.columns)))
    lanczos = Bidiagonalization(operator, start, steps, nothing)
    lanczos.advance(steps)
    return lanczos


def assert_same(one: dg.Estimate, other: dg.Estimate) -> None:
    for name, value in one.to_dict().items():
        np.testing.assert_array_equal(value, other.to_dict()[name], err_msg=name)


# Quadrature


def test_weights_sum_to_one_and_traces_of_a_diagonal_are_exact(dtype: np.dtype[Any]) -> None:
    estimate = dg.estimate_spread(np.diag(np.arange(1.0, 11.0)).astype(dtype), steps=10)
    assert estimate.nodes.shape == estimate.weights.shape == (16, 10)
    np.testing.assert_allclose(np.sum(estimate.weights, axis=1), 1.0, rtol=1e-14)
    for function, trace in ((np.ones_like, 10), (np.array, 55), (np.square, 385)):
        seen = 10 * np.sum(estimate.weights * function(estimate.nodes), axis=1)
        np.testing.assert_allclose(seen, trace, rtol=1e3 * np.finfo(dtype).eps)
    assert estimate.effective_rank == pytest.approx(effective_rank(np.arange(1.0, 11.0)), rel=1e-5)
    assert estimate.method == "lanczos"


def test_moments_are_exact_to_twice_the_steps(rng: np.random.Generator) -> None:
    matrix, start = rng.standard_normal((40, 30)), rng.standard_normal((3, 30))
    operator = read_operator(matrix)
    nothing = TopPart(np.empty(0), np.empty((0, 40)), np.empty((0, 30)))
    lanczos = Bidiagonalization(operator, start, 5, nothing)
    lanczos.advance(5)
    seen = lanczos.quadrature(5)
    vectors = (start / np.linalg.norm(start, axis=1, keepdims=True)).astype(np.longdouble).T
    power = vectors
    for degree in range(10):
        truth = np.sum(vectors * power, axis=0).astype(np.float64)
        moments = np.sum(seen.weights * np.ldexp(seen.nodes, operator.exponent) ** (2 * degree), axis=1)
        np.testing.assert_allclose(moments, truth, rtol=1e-12)
        power = matrix.T.astype(np.longdouble) @ (matrix.astype(np.longdouble) @ power)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_an_identity_stops_after_one_step(size: int, dtype: np.dtype[Any]) -> None:
    estimate = dg.estimate_spread(3 * np.eye(size, dtype=dtype))
    assert estimate.nodes.shape == (16, 1)
    np.testing.assert_allclose(estimate.nodes, 3.0, rtol=1e-6)
    np.testing.assert_array_equal(estimate.weights, 1.0)
    assert estimate.effective_rank == pytest.approx(size, rel=1e-6)
    assert estimate.stable_rank == pytest.approx(size, rel=1e-6)
    assert estimate.log_max == pytest.approx(np.log(3.0), rel=1e-6)
    assert estimate.standard_error == pytest.approx(0.0, abs=1e-12)
    assert estimate.applications == (32 if size > 1 else 16)


def test_an_orthogonal_matrix_stops_after_one_step(rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    estimate = dg.estimate_spread(np.linalg.qr(rng.standard_normal((400, 400)))[0].astype(dtype))
    assert estimate.nodes.shape == (16, 1)
    assert estimate.effective_rank == pytest.approx(400, rel=1e-5)


def test_a_dominant_value_carries_its_weight_once(rng: np.random.Generator) -> None:
    values = np.append(1e6, 1.0 + rng.random(299))
    matrix = rotated(values)
    start = rng.standard_normal((3, 300))
    lanczos = bidiagonalized(matrix, start, 200)
    right = np.linalg.svd(matrix)[2][0]
    seen = lanczos.quadrature(200)
    assert seen.nodes.shape == (3, 200)
    dominant = seen.nodes > 0.5 * np.max(seen.nodes)
    np.testing.assert_array_equal(np.sum(dominant, axis=1), 1)
    weight = (start @ right / np.linalg.norm(start, axis=1)) ** 2
    np.testing.assert_allclose(np.sum(seen.weights * dominant, axis=1), weight, rtol=1e-8)

    estimate = dg.estimate_spread(matrix, steps=200, probes=4)
    dominant = estimate.nodes > 1e3
    np.testing.assert_array_equal(np.sum(dominant, axis=1), 1)
    np.testing.assert_allclose(estimate.nodes[dominant], 1e6, rtol=1e-9)
    if estimate.method == "top+lanczos":
        np.testing.assert_allclose(estimate.weights[dominant], 1 / 300, rtol=1e-12)


def test_a_vector_whose_space_is_exhausted_stops_alone(rng: np.random.Generator) -> None:
    matrix = np.diag(np.arange(1.0, 21.0))
    start = np.stack([np.eye(20)[3], rng.standard_normal(20), np.eye(20)[5] + np.eye(20)[6]])
    lanczos = bidiagonalized(matrix, start, 12)
    np.testing.assert_array_equal(lanczos.lengths, [1, 12, 2])
    seen, alone = lanczos.quadrature(12), bidiagonalized(matrix, start[1:2], 12).quadrature(12)
    np.testing.assert_allclose(seen.nodes[1], alone.nodes[0], rtol=1e-12)
    np.testing.assert_allclose(seen.weights[1], alone.weights[0], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(np.sum(seen.weights, axis=1), 1.0, rtol=1e-14)
    assert np.all(np.isfinite(np.log(seen.nodes)))  # the repeated nodes are harmless to any function


@pytest.mark.parametrize("shape", [(30, 30), (50, 30), (30, 50), (1, 9), (9, 1), (1, 1), (2, 3)])
def test_all_steps_see_the_whole_spectrum(shape: tuple[int, int], rng: np.random.Generator) -> None:
    matrix = rng.standard_normal(shape)
    values = np.linalg.svd(matrix, compute_uv=False)
    estimate = dg.estimate_spread(matrix, steps=10**6)
    assert estimate.full_rank == min(shape)
    assert estimate.nodes.shape[1] <= min(shape)
    assert 1.0 <= estimate.effective_rank <= min(shape)
    # Each probe weighs the values otherwise, but meets them all.
    np.testing.assert_allclose(estimate.nodes, np.broadcast_to(values, estimate.nodes.shape), rtol=1e-9)


def test_rank_lost_is_seen_as_zeros(rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 60))
    estimate = dg.estimate_spread(matrix)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert estimate.nodes.shape[1] == 6
    assert estimate.log_max == pytest.approx(np.log(values[0]), rel=1e-12)
    assert abs(estimate.effective_rank - effective_rank(values)) < 4 * estimate.standard_error + 1e-9


# What the estimates are worth


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(150, 150), (120, 200)])
def test_the_interval_covers_the_truth_in_most_seeds(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(3).standard_normal(shape)
    truth = effective_rank(np.linalg.svd(matrix, compute_uv=False))
    estimates = [dg.estimate_spread(matrix, steps=40, seed=seed) for seed in range(100)]
    errors = np.array([estimate.effective_rank - truth for estimate in estimates])
    reported = np.array([estimate.standard_error for estimate in estimates])
    assert 89 <= np.sum(np.abs(errors) <= T_15 * reported) <= 100  # 3 sigma below 95
    assert 0.75 < np.sqrt(np.mean(reported**2)) / np.std(errors) < 1.35
    assert abs(np.mean(errors)) < 0.004 * truth


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        np.exp(-np.arange(300) / 8),
        1 / np.arange(1.0, 301),
        np.append(1e4, 0.5 + np.arange(299) / 299),
        np.append(np.ones(10), np.full(290, 1e-6)),
    ],
    ids=["exponential", "harmonic", "dominant", "step"],
)
def test_the_top_part_is_found_where_the_spectrum_decays(values: Array) -> None:
    matrix = rotated(values)
    truth = effective_rank(values)
    for seed in range(4):
        estimate = dg.estimate_spread(matrix, seed=seed)
        assert estimate.method == "top+lanczos"
        assert estimate.log_max == pytest.approx(np.log(values[0]), abs=1e-9)
        assert abs(estimate.effective_rank - truth) < 4 * estimate.standard_error + 2e-3 * truth
        assert estimate.standard_error < 0.02 * truth
        np.testing.assert_allclose(np.sum(estimate.weights, axis=1), 1.0, rtol=1e-12)
        squares = estimate.full_rank * np.sum(estimate.weights * estimate.nodes**2, axis=1)
        assert np.mean(squares) == pytest.approx(np.sum(values**2), rel=0.01)


def test_a_product_of_relu_layers_is_right_to_two_percent(dtype: np.dtype[Any]) -> None:
    matrix = relu_product(96, 256)
    truth = effective_rank(np.linalg.svd(matrix, compute_uv=False))
    estimate = dg.estimate_spread(matrix.astype(dtype))
    assert estimate.method == "top+lanczos"
    assert estimate.effective_rank == pytest.approx(truth, rel=0.02)


def test_a_flat_spectrum_has_no_top_part(rng: np.random.Generator) -> None:
    for size in (100, 400):
        estimate = dg.estimate_spread(rng.standard_normal((size, size)))
        assert estimate.method == "lanczos"
        assert estimate.applications == 16 * (2 * 48 - 1)


def test_more_steps_leave_less_bias(rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((250, 250))
    checks = [abs(dg.estimate_spread(matrix, steps=steps).bias_check) for steps in (6, 20, 60)]
    assert checks[0] > 4 * checks[1] > 16 * checks[2] > 0
    assert np.isnan(dg.estimate_spread(matrix, steps=1).bias_check)


def test_one_probe_has_no_standard_error(rng: np.random.Generator) -> None:
    estimate = dg.estimate_spread(rng.standard_normal((50, 50)), probes=1)
    assert np.isnan(estimate.standard_error)
    assert 1 <= estimate.effective_rank <= 50


def test_float32_agrees_with_float64(rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((300, 200)).astype(np.float32)
    single, double = dg.estimate_spread(matrix), dg.estimate_spread(matrix.astype(np.float64))
    assert single.effective_rank == pytest.approx(double.effective_rank, rel=1e-6)
    assert single.stable_rank == pytest.approx(double.stable_rank, rel=1e-5)
    assert single.nodes.dtype == np.float64


# Same bits


def test_the_seed_decides_and_threads_and_backend_do_not(rng: np.random.Generator, backend: str) -> None:
    for matrix in (rng.standard_normal((90, 70)), rotated(np.exp(-np.arange(90) / 4))):
        plain = dg.estimate_spread(matrix)
        assert_same(plain, dg.estimate_spread(matrix, backend=backend, threads=1))
        other = dg.estimate_spread(matrix, seed=1)
        assert other.effective_rank != plain.effective_rank


def test_few_probes_are_the_first_of_many(rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((90, 70))
    few, many = dg.estimate_spread(matrix, probes=4), dg.estimate_spread(matrix, probes=9)
    np.testing.assert_allclose(few.nodes, many.nodes[:4], rtol=1e-9)


@pytest.mark.parametrize("exponent", [-900, -40, 3, 900])
def test_powers_of_two_scale_the_nodes_alone(exponent: int, rng: np.random.Generator) -> None:
    for matrix in (rng.standard_normal((60, 60)), rotated(np.exp(-np.arange(60) / 2))):
        plain, scaled = dg.estimate_spread(matrix), dg.estimate_spread(np.ldexp(matrix, exponent))
        np.testing.assert_array_equal(scaled.nodes, np.ldexp(plain.nodes, exponent))
        np.testing.assert_array_equal(scaled.weights, plain.weights)
        for name in ("effective_rank", "stable_rank", "standard_error", "bias_check"):
            assert getattr(scaled, name) == getattr(plain, name)
        assert scaled.log_max == pytest.approx(plain.log_max + exponent * np.log(2.0), rel=1e-14)


@pytest.mark.parametrize(
    ("scale", "kind"),
    [
        *((scale, np.float64) for scale in (1e300, 1.7e308, 1e-300, 2e-308)),
        *((scale, np.float32) for scale in (1e37, 3e38, 1e-36, 2e-38)),
    ],
)
def test_ends_of_the_range_are_as_good_as_one(scale: float, kind: Any, rng: np.random.Generator) -> None:
    signs = rng.choice([-1.0, 1.0], (80, 64)).astype(kind)
    plain, scaled = dg.estimate_spread(signs), dg.estimate_spread(signs * kind(scale))
    assert scaled.effective_rank == pytest.approx(plain.effective_rank, rel=1e-5)
    assert scaled.log_max == pytest.approx(plain.log_max + np.log(float(kind(scale))), rel=1e-6)
    for tiny in (5e-324, 1e-320):
        assert dg.estimate_spread(np.diag([tiny, tiny, tiny])).effective_rank == pytest.approx(3.0, rel=1e-12)


# What operators may be


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


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"probes": 0}, ValueError, "probes=0 must be an integer >= 1"),
        ({"probes": 2.0}, TypeError, "probes must be an integer"),
        ({"steps": 0}, ValueError, "steps=0 must be an integer >= 1"),
        ({"steps": True}, TypeError, "steps must be an integer"),
        ({"seed": -1}, ValueError, "seed=-1 must be an integer >= 0"),
        ({"seed": None}, TypeError, "seed must be an integer"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not a backend"),
        ({"threads": 0}, ValueError, "threads=0 must be an integer >= 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        dg.estimate_spread(np.eye(3), **options)


# Hard operators


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 17), (24, 19)])
def test_a_nan_or_infinity_makes_all_nan(value: float, place: tuple[int, int], dtype: np.dtype[Any]) -> None:
    matrix = np.random.default_rng(0).standard_normal((25, 20)).astype(dtype)
    matrix[place] = value
    for operator in (matrix, matrix.T, Products(matrix)):
        estimate = dg.estimate_spread(operator)
        for name in ("effective_rank", "stable_rank", "log_max", "standard_error", "bias_check"):
            assert np.isnan(getattr(estimate, name)), name
        assert np.all(np.isnan(estimate.nodes))
        assert estimate.nodes.shape == estimate.weights.shape == (16, 1)


def test_a_zero_operator_has_no_rank(dtype: np.dtype[Any]) -> None:
    for shape in ((5, 5), (3, 8), (1, 1)):
        estimate = dg.estimate_spread(np.zeros(shape, dtype))
        assert estimate.effective_rank == estimate.stable_rank == estimate.standard_error == 0.0
        assert estimate.log_max == -np.inf
        np.testing.assert_array_equal(estimate.nodes, 0.0)
        np.testing.assert_array_equal(estimate.weights, 1.0)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_an_empty_operator_has_rank_zero_and_the_rest_nan(shape: tuple[int, int]) -> None:
    estimate = dg.estimate_spread(np.zeros(shape))
    assert estimate.effective_rank == 0.0
    assert estimate.full_rank == 0
    for name in ("stable_rank", "log_max", "standard_error", "bias_check"):
        assert np.isnan(getattr(estimate, name)), name
    assert estimate.nodes.shape == estimate.weights.shape == (16, 0)
    assert estimate.applications == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 40])
def test_all_ones_has_rank_one(size: int) -> None:
    estimate = dg.estimate_spread(np.ones((size, size)))
    assert 1.0 <= estimate.effective_rank <= size
    assert estimate.log_max == pytest.approx(np.log(size), abs=1e-12)
    if size >= 4:
        assert estimate.effective_rank == pytest.approx(1.0, rel=1e-9)


# Manners


def test_an_estimate_is_a_result(rng: np.random.Generator) -> None:
    estimate = dg.estimate_spread(rng.standard_normal((30, 20)))
    copy = pickle.loads(pickle.dumps(estimate))
    assert_same(copy, estimate)
    assert estimate != copy
    assert "\n" not in repr(estimate)
    assert "method=lanczos" in repr(estimate)
    with pytest.raises(AttributeError):
        estimate.method = "none"  # type: ignore[misc, assignment]
    for array in (estimate.nodes, estimate.weights):
        assert array.flags.writeable
        assert array.flags.c_contiguous


def test_scipy_stays_out() -> None:
    code = (
        "import sys, numpy as np, depthgauge as dg; dg.estimate_spread(np.eye(9)); "
        "sys.exit('scipy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LONG_CALL = """
import numpy as np
import depthgauge as dg

matrix = np.random.default_rng(0).standard_normal((1500, 1500))
before = dg.estimate_spread(matrix[:50, :50]).nodes
print("ready", flush=True)
try:
    dg.estimate_spread(matrix, steps=600)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.estimate_spread(matrix[:50, :50]).nodes, before)
print("works", flush=True)
"""


@pytest.mark.slow
@needs_signals
def test_control_c_stops_an_estimate_and_the_next_one_works() -> None:
    assert output_after_control_c(LONG_CALL, after=0.5) == ["interrupted", "works"]
