"""The spread from products: the top part, standard errors, same bits, and hard operators."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from interrupts import needs_signals, output_after_control_c
from operators import Products, assert_same, rotated
from problems import effective_rank

import depthgauge as dg

Array = npt.NDArray[Any]


# Two-sided 95 % quantile of Student's t with 15 degrees of freedom, for 16 probes.
T_15 = 2.1314


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
    four, nine = dg.estimate_spread(matrix, probes=4), dg.estimate_spread(matrix, probes=9)
    np.testing.assert_allclose(four.nodes, nine.nodes[:4], rtol=1e-9)


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
