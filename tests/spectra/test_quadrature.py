"""Bidiagonalization from random vectors, and the quadrature that estimates rest on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from operators import rotated
from problems import effective_rank

import depthgauge as dg
from depthgauge.spectra.lanczos import Bidiagonalization
from depthgauge.spectra.linear_operators import read_operator
from depthgauge.spectra.range_finder import TopPart

Array = npt.NDArray[Any]


def bidiagonalized(matrix: Array, start: Array, steps: int) -> Bidiagonalization:
    operator = read_operator(matrix)
    nothing = TopPart(np.empty(0), np.empty((0, operator.rows)), np.empty((0, operator.columns)))
    lanczos = Bidiagonalization(operator, start, steps, nothing)
    lanczos.advance(steps)
    return lanczos


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
