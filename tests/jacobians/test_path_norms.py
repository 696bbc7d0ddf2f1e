"""The path orders of a Jacobian: their sum, every path by itself, scale laws, and what is predicted of them."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from interrupts import needs_signals, output_after_control_c
from problems import Array, Problem, assert_close, assert_same_bits, empty_problems, random_problem

import depthgauge as dg
from depthgauge.equation import BRANCHES

SCALES: dict[str, Any] = {"branch_scale": [0.7, -0.4, 0.0, 1.2], "skip_scale": [0.8, -1.1, 0.6, 0.9]}


def frobenius(matrices: Any) -> Array:
    found: Array = np.linalg.norm(matrices, axis=(-2, -1))
    return found


def each_block(p: Problem, backend: str) -> tuple[Array, Array, Array]:
    """Return ``branch_scale * J``, skip_scale and post' of each block at each example, shapes (L, B, d, d), (L,).

    They are told apart by Jacobians of single blocks: without the post norm, and of the post norm alone.
    """
    states = dg.forward(p.block, p.weights, p.x, backend=backend).states
    names = ("post_gain", "post_shift")
    inner: dict[str, Any] = {name: array for name, array in p.weights.items() if name not in names}
    branches, posts = [], []
    skips = np.broadcast_to(p.block.skip_scale, p.weights.depth)
    scales = np.broadcast_to(p.block.branch_scale, p.weights.depth)
    for layer in range(p.weights.depth):
        one = slice(layer, layer + 1)
        h = states[layer]
        alone = p.block.replace(post_norm="none", skip_scale=0.0, branch_scale=float(scales[layer]))
        own = dg.Weights(**{name: array[one] for name, array in inner.items()})
        branches.append(dg.jacobian(alone, own, h, backend=backend))
        total = skips[layer] * h + dg.forward(alone, own, h, backend=backend).output
        posting = p.block.replace(branch_scale=0.0, skip_scale=1.0)
        posts.append(dg.jacobian(posting, p.weights[one], total, backend=backend))
    return np.stack(branches), skips, np.stack(posts)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("post", ["none", "layer", "rms_detached"])
def test_each_part_is_the_sum_of_its_paths(rng: np.random.Generator, branch: str, post: str, backend: str) -> None:
    block = dg.Block(branch=branch, activation="gelu", output_norm="layer", post_norm=post, **SCALES)
    p = random_problem(rng, block, 4, 5, 7, 3)
    branches, skips, posts = each_block(p, backend)
    parts = np.zeros((5, 3, 5, 5))
    for choices in itertools.product((False, True), repeat=4):
        path = np.broadcast_to(np.eye(5), (3, 5, 5))
        for layer, through in enumerate(choices):
            path = posts[layer] @ (branches[layer] @ path if through else skips[layer] * path)
        parts[sum(choices)] += path
    found = dg.path_norms(block, p.weights, p.x, 4, ranks=True, backend=backend)
    assert_close(found.norms, frobenius(parts), 1e-13)
    assert_close(found.branch_squares, frobenius(branches) ** 2 / 5, 1e-13)
    assert found.effective_rank is not None
    assert_close(found.effective_rank[:4], dg.spread(parts[:4]).effective_rank, 1e-11)
    assert np.all(found.norms[4] == 0)  # a branch_scale is 0
    assert np.all(found.effective_rank[4] == 0)
    assert np.all(found.reconstruction_error < 1e-14)
    squares = frobenius(posts) ** 2 / 5
    want = np.zeros((5, 3))
    for example in range(3):
        polynomial = np.polynomial.Polynomial([5.0])
        for layer in range(4):
            b = found.branch_squares[layer, example]
            polynomial = polynomial * np.polynomial.Polynomial([skips[layer] ** 2, b]) * squares[layer, example]
        want[: len(polynomial.coef), example] = np.sqrt(polynomial.coef)
    assert_close(found.predicted, want, 1e-13)


@pytest.mark.parametrize(("width", "activation"), [(64, "relu"), (64, "gelu"), (33, "tanh")])
def test_all_parts_sum_to_the_jacobian(width: int, activation: str, backend: str) -> None:
    depth = 48 if backend == "native" else 16
    block = dg.Block(activation=activation, branch_scale=0.5)
    weights = dg.initialize(block, depth, width, rng=0)
    x = np.random.default_rng(1).standard_normal((2, width))
    found = dg.path_norms(block, weights, x, depth, backend=backend)
    assert found.norms.shape == (depth + 1, 2)
    assert np.all(found.reconstruction_error < 1e-12)
    fewer = dg.path_norms(block, weights, x, depth // 4, backend=backend)
    assert_same_bits(fewer.norms, found.norms[: depth // 4 + 1])
    assert np.all(fewer.reconstruction_error > 1e-9)
    more = dg.path_norms(block, weights, x, depth + 2, backend=backend)
    assert np.all(more.norms[depth + 1 :] == 0)
    assert np.all(more.reconstruction_error < 1e-12)


def test_what_orders_left_out_add_up_to(rng: np.random.Generator, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, dg.Block(activation="silu"), 3, 5, 7, 4, dtype, vectors=False)
    jacobian = np.float64(dg.jacobian(p.block, p.weights, p.x, backend=backend))
    found = dg.path_norms(p.block, p.weights, p.x, 0, backend=backend)
    want = frobenius(np.eye(5) - jacobian) / frobenius(jacobian)
    assert_close(found.reconstruction_error, want, 10 * float(np.finfo(dtype).eps))
    np.testing.assert_allclose(found.norms[0], np.sqrt(5))


@pytest.mark.parametrize("scale", [0.25, -2.0])
def test_part_k_goes_with_the_kth_power_of_the_branch_scale(
    rng: np.random.Generator, scale: float, backend: str, dtype: np.dtype[Any]
) -> None:
    block = dg.Block(activation="identity", pre_norm="none")  # linear: the states do not matter
    p = random_problem(rng, block, 5, 6, 9, 2, dtype, vectors=False)
    found, scaled = (
        dg.path_norms(b, p.weights, p.x, 5, ranks=True, backend=backend)
        for b in (block, block.replace(branch_scale=scale))
    )
    powers = abs(scale) ** np.arange(6)[:, None]
    eps = float(np.finfo(dtype).eps)
    for name in ("norms", "predicted", "predicted_poisson"):
        np.testing.assert_allclose(getattr(scaled, name), getattr(found, name) * powers, rtol=50 * eps, err_msg=name)
    np.testing.assert_allclose(scaled.gain, found.gain, rtol=50 * eps)
    assert found.effective_rank is not None
    assert scaled.effective_rank is not None
    assert_close(scaled.effective_rank, found.effective_rank, 100 * eps)


@pytest.mark.parametrize(("branch", "matrices"), [("linear", 1), ("mlp", 2), ("gated", 3)])
def test_the_crude_prediction_is_its_formula(
    rng: np.random.Generator, branch: str, matrices: int, backend: str
) -> None:
    block = dg.Block(branch=branch, weight_scale=0.7, branch_scale=[0.5, -0.2, 0.1], activation="leaky_relu")
    p = random_problem(rng, block, 3, 6, 8, 2)
    found = dg.path_norms(block, p.weights, p.x, 3, backend=backend)
    beta = np.sqrt(np.mean(np.square(block.branch_scale)))
    np.testing.assert_allclose(
        found.gain * beta * 0.7**matrices, np.sqrt(np.mean(found.branch_squares, axis=0)), rtol=1e-14
    )
    for k in range(4):
        want = math.sqrt(6) * (found.gain * beta * 0.7**matrices * math.sqrt(3)) ** k / math.sqrt(math.factorial(k))
        np.testing.assert_allclose(found.predicted_poisson[k], want, rtol=1e-13)


def test_predictions_neither_overflow_nor_cancel(backend: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    depth = 400
    block = dg.Block(branch="linear", activation="identity", pre_norm="none", branch_scale=1e-3)
    scales = 10.0 ** np.random.default_rng(0).uniform(-2, 1, depth)
    weights = dg.Weights(scales[:, None, None] * np.eye(3))
    found = dg.path_norms(block, weights, np.zeros((1, 3)), 200, backend=backend)
    with mpmath.workdps(60):
        squares = [mpmath.mpf(float(b)) for b in found.branch_squares[:, 0]]
        coefficients = [mpmath.mpf(1)] + [mpmath.mpf(0)] * 200
        for b in squares:
            for k in range(200, 0, -1):
                coefficients[k] += b * coefficients[k - 1]
        for k in (0, 1, 2, 50, 100):
            want = float(mpmath.sqrt(3 * coefficients[k]))
            assert found.predicted[k, 0] == pytest.approx(want, rel=1e-11)
            # Branches that are multiples of one another are as correlated as can be.
            assert found.norms[k, 0] >= want * (1 - 1e-12)
        last = [float(mpmath.log(3 * coefficients[k]) / 2) for k in (150, 200)]
    assert found.predicted[200, 0] == pytest.approx(math.exp(last[1]) if last[1] > -740 else 0.0, rel=1e-10)


def test_norms_stay_in_range_where_they_are(backend: str, dtype: np.dtype[Any]) -> None:
    depth = 400
    block = dg.Block(branch="linear", activation="identity", pre_norm="none", branch_scale=3.0, skip_scale=2.0)
    weights = dg.Weights(np.broadcast_to(np.eye(2), (depth, 2, 2)).astype(dtype))
    found = dg.path_norms(block, weights, np.zeros((1, 2), dtype), 3, backend=backend)
    logs = [math.log(math.comb(depth, k)) + k * math.log(3) + (depth - k) * math.log(2) for k in range(4)]
    want = np.log(math.sqrt(2)) + np.array(logs)
    np.testing.assert_allclose(np.log(found.norms[:, 0]), want, rtol=20 * np.finfo(dtype).eps * depth)
    # The orders left out hold nearly everything: 5^400 in all.
    assert found.reconstruction_error[0] == pytest.approx(1.0, abs=1e-6)


def test_bits_depend_on_neither_threads_nor_batch(monkeypatch: pytest.MonkeyPatch, dtype: np.dtype[Any]) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "5")
    p = random_problem(np.random.default_rng(6), dg.Block(post_norm="rms"), 3, 9, 13, 11, dtype, replicates=(2,))
    want = dg.path_norms(p.block, p.weights, p.x, 3, ranks=True, backend="native", threads=1).to_dict()
    for threads in (2, 5):
        found = dg.path_norms(p.block, p.weights, p.x, 3, ranks=True, backend="native", threads=threads).to_dict()
        for name, array in want.items():
            assert_same_bits(found[name], array, name)
    for example in (0, 10):
        alone = dg.path_norms(p.block, p.weights, p.x[:, [example]], 3, ranks=True, backend="native").to_dict()
        for name, array in want.items():
            assert_same_bits(alone[name], np.ascontiguousarray(array[..., [example]]), name)


@pytest.mark.parametrize("branch", BRANCHES)
def test_native_matches_the_reference(rng: np.random.Generator, branch: str, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch=branch, pre_norm="layer", post_norm="rms", branch_scale=[0.5, 0.0, 2.0])
    for width, hidden, batch in [(4, 0, 2), (7, 5, 9), (8, 1, 1), (9, 33, 5), (17, 64, 3)]:
        p = random_problem(rng, block, 3, width, hidden, batch, dtype)
        got, want = (dg.path_norms(block, p.weights, p.x, 3, backend=name) for name in ("native", "reference"))
        for name in ("norms", "branch_squares", "predicted"):
            assert_close(getattr(got, name), getattr(want, name), 300 * float(np.finfo(dtype).eps), what=name)


@pytest.mark.slow
def test_orders_at_initialization_are_as_predicted() -> None:
    """Kept to the size at which widths no longer matter: narrower stacks are farther off."""
    block = dg.Block()
    weights = dg.initialize(block, 48, 256, rng=list(range(8)), dtype=np.float32)
    x = np.random.default_rng(9).standard_normal((8, 1, 256)).astype(np.float32)
    found = dg.path_norms(block, weights, x, 8, backend="native")
    ratio = np.mean(found.norms / found.predicted, axis=(0, 2))
    assert np.all(np.abs(ratio[1:] - 1) < 0.03), ratio


@pytest.mark.parametrize("branch", BRANCHES)
def test_empty_axes(branch: str, backend: str) -> None:
    block = dg.Block(branch=branch)
    for p in empty_problems(block):
        depth, (*replicates, batch, _) = p.weights.depth, p.x.shape
        found = dg.path_norms(block, p.weights, p.x, 2, ranks=True, backend=backend)
        assert found.norms.shape == found.predicted.shape == found.predicted_poisson.shape == (*replicates, 3, batch)
        assert found.branch_squares.shape == (*replicates, depth, batch)
        assert found.reconstruction_error.shape == found.gain.shape == (*replicates, batch)
        if not depth:
            assert np.all(found.norms == [[2.0], [0.0], [0.0]])
            assert np.all(found.reconstruction_error == 0)
            assert np.all(found.predicted == [[2.0], [0.0], [0.0]])


def test_an_example_that_is_not_finite_is_alone(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="gelu"), 3, 5, 7, 3)
    x = p.x.copy()
    x[1, 0] = np.nan
    found = dg.path_norms(p.block, p.weights, x, 2, ranks=True, backend=backend).to_dict()
    clean = dg.path_norms(p.block, p.weights, p.x, 2, ranks=True, backend=backend).to_dict()
    for name, array in clean.items():
        assert np.all(np.isnan(found[name][-1, ..., 1] if array.ndim > 1 else found[name][1])), name
        assert_close(found[name][..., [0, 2]], array[..., [0, 2]], 1e-14, what=name)


def test_results_are_plain_data(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 3, 5, 7, 3, replicates=(2,))
    found = dg.path_norms(p.block, p.weights, p.x, 2, backend=backend)
    assert found.effective_rank is None
    assert "effective_rank" not in found.to_dict()
    assert repr(found).startswith("PathNorms(replicates=(2,), depth=3, max_order=2, examples=3, reconstruction_error=")
    again = pickle.loads(pickle.dumps(found))
    for name, array in found.to_dict().items():
        assert array.dtype == np.float64, name
        assert array.flags.owndata, name
        assert array.flags.writeable, name
        assert array.flags.c_contiguous, name
        assert_same_bits(getattr(again, name), array, name)


def test_arguments_are_checked() -> None:
    block = dg.Block()
    weights, x = dg.initialize(block, 2, 4, rng=0), np.zeros((2, 4))
    with pytest.raises(ValueError, match="max_order=-1 must be an integer >= 0"):
        dg.path_norms(block, weights, x, -1, backend="reference")
    with pytest.raises(TypeError, match="max_order must be an integer"):
        dg.path_norms(block, weights, x, 1.0, backend="reference")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ranks must be True or False"):
        dg.path_norms(block, weights, x, 1, ranks=1, backend="reference")  # type: ignore[arg-type]


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_orders_above_the_depth_are_zero_and_cost_nothing(
    rng: np.random.Generator, act: str, depth: int, backend: str
) -> None:
    p = random_problem(rng, dg.Block(activation=act), depth, 16, 9, 2)
    through_depth = dg.path_norms(p.block, p.weights, p.x, depth, ranks=True, backend=backend)
    # Matrices of so many orders would take 1.2 GB.
    beyond = dg.path_norms(p.block, p.weights, p.x, 300_000, ranks=True, backend=backend)
    for name in ("norms", "effective_rank", "predicted"):
        assert_same_bits(getattr(beyond, name)[: depth + 1], getattr(through_depth, name))
        assert not getattr(beyond, name)[depth + 1 :].any()
    assert_same_bits(beyond.predicted_poisson[: depth + 1], through_depth.predicted_poisson)
    assert_same_bits(beyond.reconstruction_error, through_depth.reconstruction_error)


LONG_CALL = """
import sys
import numpy as np
import depthgauge as dg

block = dg.Block()
weights = dg.GeneratedWeights(block, 4, 1024, 8192, seed=0).materialize()
x = dg.normal(0, (8, 1024))
calls = {
    "jacobian": lambda: dg.jacobian(block, weights, x, threads=2),
    "path_norms": lambda: dg.path_norms(block, weights, x, 4, threads=2),
}
print("ready", flush=True)
try:
    calls[sys.argv[1]]()
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.jacobian(block, weights[:0], x[:1])[0], np.eye(1024))
print("works", flush=True)
"""


@pytest.mark.slow
@needs_signals
@pytest.mark.parametrize("call", ["jacobian", "path_norms"])
def test_control_c_stops_within_a_wide_block(call: str) -> None:
    words = output_after_control_c(LONG_CALL, call, after=1.0, environment={"DEPTHGAUGE_BACKEND": "native"})
    assert words == ["interrupted", "works"]
