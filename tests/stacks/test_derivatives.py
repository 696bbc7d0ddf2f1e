"""VJP and JVP: finite differences, adjointness, autograd, and the linear structure of probes and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_block import PLACES, every_block, label
from problems import BIASES, GAINS, MATRICES, SHIFTS, Array, assert_close, random_problem
from torch_equation import TorchEquation

import depthgauge as dg
from depthgauge.equation import BRANCHES

ALL = pytest.mark.parametrize("block", every_block(), ids=label)
SMOOTH = pytest.mark.parametrize(
    "block",
    [block for block in every_block() if not any("detached" in getattr(block, place) for place in PLACES)],
    ids=label,
)


def inner(a: Array, b: Array) -> float:
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64)))


@ALL
def test_jvp_and_vjp_are_adjoint(rng: np.random.Generator, block: dg.Block, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, block, 3, 9, 7, 5, dtype, replicates=(2,))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    tangent = rng.standard_normal(p.x.shape).astype(dtype)
    pushed = dg.jvp(p.block, p.weights, fwd, tangent).output
    pulled = dg.vjp(p.block, p.weights, fwd, p.vector).input_gradient
    size = np.linalg.norm(pushed.astype(float)) * np.linalg.norm(p.vector.astype(float))
    assert abs(inner(pushed, p.vector) - inner(tangent, pulled)) <= 10 * np.finfo(dtype).eps * size


@SMOOTH
def test_jvp_is_the_slope_of_a_finite_difference(rng: np.random.Generator, block: dg.Block, backend: str) -> None:
    p = random_problem(rng, block, 3, 5, 7, 4)
    step = 1e-6
    sides = [dg.forward(p.block, p.weights, p.x + s * step * p.vector, backend=backend).output for s in (1, -1)]
    pushed = dg.jvp(p.block, p.weights, p.x, p.vector, backend=backend).output
    assert_close((sides[0] - sides[1]) / (2 * step), pushed, 1e-6)


@SMOOTH
def test_weight_gradients_are_slopes_of_finite_differences(
    rng: np.random.Generator, block: dg.Block, backend: str
) -> None:
    p = random_problem(rng, block, 3, 5, 6, 4)
    bwd = dg.vjp(p.block, p.weights, p.x, p.vector, weight_grads=True, backend=backend)
    assert bwd.weights is not None
    step = 1e-6

    def output(block: dg.Block, weights: dg.Weights) -> Array:
        return dg.forward(block, weights, p.x, keep="nothing", backend=backend).output

    for name, gradient in bwd.weights.items():
        direction = rng.standard_normal(gradient.shape)
        fields: dict[str, Any] = dict(p.weights.items())
        fields[name] = fields[name] + np.stack([step * direction, -step * direction])
        ahead, behind = output(p.block, dg.Weights(**fields))
        slope = inner(ahead - behind, p.vector) / (2 * step)
        assert slope == pytest.approx(inner(gradient, direction), rel=1e-6, abs=1e-6), name
    for name in ("branch_scale", "skip_scale"):
        gradient = getattr(bwd, name)
        for layer in range(3):
            sides = []
            for sign in (1, -1):
                scales = list(getattr(block, name))
                scales[layer] += sign * step
                sides.append(output(block.replace(**{name: scales}), p.weights))
            slope = inner(sides[0] - sides[1], p.vector) / (2 * step)
            assert slope == pytest.approx(gradient[layer], rel=1e-6, abs=1e-6), name


@ALL
def test_autograd_agrees(rng: np.random.Generator, block: dg.Block, backend: str) -> None:
    torch = pytest.importorskip("torch")
    p = random_problem(rng, block, 3, 6, 9, 5)
    other = TorchEquation(torch, p)
    output = other.output(other.x)
    output.backward(torch.from_numpy(p.vector))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    bwd = dg.vjp(p.block, p.weights, fwd, p.vector, weight_grads=True)
    assert_close(fwd.output, output.detach().numpy(), 1e-13)
    assert_close(bwd.input_gradient, other.x.grad.numpy(), 1e-12)
    assert bwd.weights is not None
    gradients = dict(bwd.weights.items())
    largest = max(float(np.max(np.abs(gradient))) for gradient in gradients.values())
    for name, tensor in other.weights.items():
        assert_close(gradients[name], tensor.grad.numpy(), 1e-12, largest, name)
    for name, tensor in other.scales.items():
        assert_close(getattr(bwd, name), tensor.grad.numpy(), 1e-12, largest, name)


@pytest.mark.parametrize("branch", BRANCHES)
def test_weight_rms_is_that_of_each_replicates_own_gradient(
    rng: np.random.Generator, branch: str, backend: str, dtype: np.dtype[Any]
) -> None:
    p = random_problem(rng, dg.Block(branch=branch, activation="tanh", post_norm="layer"), 3, 6, 7, 5, dtype)
    x = rng.standard_normal((2, 5, 6)).astype(dtype)
    bwd = dg.vjp(p.block, p.weights, x, p.vector, weight_grads="rms", backend=backend)
    assert bwd.weights is None
    assert bwd.weight_rms is not None
    assert set(bwd.weight_rms) == {*MATRICES[branch], *BIASES[branch], *GAINS, *SHIFTS}
    for replicate in range(2):
        alone = dg.vjp(p.block, p.weights, x[replicate], p.vector, weight_grads=True, backend=backend)
        assert alone.weights is not None
        for name, gradient in alone.weights.items():
            axes = tuple(range(1, gradient.ndim))
            want = np.sqrt(np.mean(gradient.astype(np.float64) ** 2, axis=axes))
            assert_close(bwd.weight_rms[name][replicate], want, 100 * float(np.finfo(dtype).eps), what=name)


def test_weight_gradients_sum_over_the_replicates_a_field_lacks(rng: np.random.Generator, backend: str) -> None:
    block = dg.Block(activation="gelu")
    up = rng.standard_normal((3, 1, 2, 4, 5))
    down = rng.standard_normal((2, 2, 5, 4))
    bias = rng.standard_normal((2, 4))
    x, g = rng.standard_normal((2, 3, 2, 6, 4))
    bwd = dg.vjp(block, dg.Weights(up, down, b_down=bias), x, g, weight_grads=True, backend=backend)
    assert bwd.weights is not None
    assert bwd.branch_scale is not None
    assert bwd.branch_scale.shape == (3, 2, 2)
    total = {name: np.zeros_like(array) for name, array in (("up", up), ("down", down), ("b_down", bias))}
    for i in range(3):
        for j in range(2):
            alone = dg.vjp(
                block, dg.Weights(up[i, 0], down[j], b_down=bias), x[i, j], g[i, j], weight_grads=True, backend=backend
            )
            assert alone.weights is not None
            gradients = dict(alone.weights.items())
            total["up"][i, 0] += gradients["up"]
            total["down"][j] += gradients["down"]
            total["b_down"] += gradients["b_down"]
            assert alone.branch_scale is not None
            assert_close(bwd.branch_scale[i, j], alone.branch_scale, 1e-13)
    for name, gradient in bwd.weights.items():
        assert_close(gradient, total[name], 1e-13, what=name)


def test_probes_are_one_call_each(rng: np.random.Generator, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, dg.Block(post_norm="rms"), 3, 6, 7, 5, dtype, replicates=(2,))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    probes = rng.standard_normal((3, 4, *p.x.shape)).astype(dtype)
    bwd = dg.vjp(p.block, p.weights, fwd, probes, quantiles=[0.5])
    tan = dg.jvp(p.block, p.weights, fwd, probes)
    assert bwd.rms.shape == tan.rms.shape == (3, 4, 2, 4)
    for i in range(3):
        for j in range(4):
            alone = dg.vjp(p.block, p.weights, fwd, probes[i, j], quantiles=[0.5])
            assert_close(bwd.input_gradient[i, j], alone.input_gradient, 10 * float(np.finfo(dtype).eps))
            for name in ("rms", "max_abs", "nonfinite", "gradient_quantiles"):
                want = getattr(alone, name)
                assert_close(getattr(bwd, name)[i, j], want, 100 * float(np.finfo(dtype).eps), what=name)
            pushed = dg.jvp(p.block, p.weights, fwd, probes[i, j])
            assert_close(tan.output[i, j], pushed.output, 10 * float(np.finfo(dtype).eps))


def test_a_vector_with_fewer_replicate_axes_broadcasts(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 2, 4, 5, 3, replicates=(2, 3))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    for shape in [(3, 4), (3, 3, 4), (1, 3, 4), (2, 1, 3, 4), (5, 2, 1, 3, 4)]:
        vector = rng.standard_normal(shape)
        whole = np.broadcast_to(vector, np.broadcast_shapes(vector.shape, p.x.shape))
        for call, field in ((dg.vjp, "input_gradient"), (dg.jvp, "output")):
            got = getattr(call(p.block, p.weights, fwd, vector), field)
            want = getattr(call(p.block, p.weights, fwd, whole), field)
            assert_close(got, want, 0)


def test_weight_gradients_take_no_probes(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block())
    for weight_grads in (True, "rms"):
        with pytest.raises(ValueError, match="takes no probe axes"):
            dg.vjp(p.block, p.weights, p.x, p.vector[None], weight_grads=weight_grads, backend=backend)


def test_a_dead_unit_contributes_exactly_nothing(backend: str, dtype: np.dtype[Any]) -> None:
    # One hidden unit, dead: an infinite or NaN sensitivity beyond it must not come back.
    block = dg.Block.placed("none", skip_scale=0)
    weights = dg.Weights(-np.ones((1, 1, 1), dtype), np.ones((1, 1, 1), dtype))
    x = np.ones((1, 1), dtype)
    for value in (np.inf, np.nan):
        g = np.full((1, 1), value, dtype)
        assert dg.vjp(block, weights, x, g, backend=backend).input_gradient[0, 0] == 0
        assert dg.jvp(block, weights, x, g, backend=backend).output[0, 0] == 0


def test_a_dead_unit_of_a_gated_branch_contributes_exactly_nothing(backend: str, dtype: np.dtype[Any]) -> None:
    # relu is 0 with its slope, so neither the gate nor what it scales passes anything on; the skip path does.
    rng = np.random.default_rng(0)
    up, down = rng.standard_normal((2, 1, 3, 3)).astype(dtype)
    block = dg.Block.placed("none", branch="gated")
    weights = dg.Weights(up, down, gate=-np.abs(up))
    x = np.abs(rng.standard_normal((2, 3))).astype(dtype)
    for value in (np.nan, np.inf, -np.inf):
        g = np.ones((2, 3), dtype)
        g[0, 0] = value
        np.testing.assert_array_equal(dg.vjp(block, weights, x, g, backend=backend).input_gradient, g)
        np.testing.assert_array_equal(dg.jvp(block, weights, x, g, backend=backend).output, g)


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_zero_scale_leaves_its_term_out(branch: str, backend: str, dtype: np.dtype[Any]) -> None:
    # tanh saturates, so an infinite state has a finite branch; and a zero branch scale is a no-op whatever the branch.
    matrix = np.ones((1, 1, 1), dtype)
    fields: dict[str, Any] = {"mlp": {"down": matrix}, "gated": {"down": matrix, "gate": matrix}}.get(branch, {})
    x = np.full((1, 1), np.inf, dtype)
    if branch != "gated":
        plain = dg.Block.placed("none", branch=branch, activation="tanh", skip_scale=0)
        assert dg.forward(plain, dg.Weights(matrix, **fields), x, backend=backend).output[0, 0] == 1
    noop = dg.Block.placed("none", branch=branch, activation="tanh", branch_scale=0)
    weights = dg.Weights(matrix, **fields, b_up=np.full((1, 1), np.nan, dtype))
    fwd = dg.forward(noop, weights, np.ones((1, 1), dtype), backend=backend)
    assert fwd.output[0, 0] == 1
    assert dg.vjp(noop, weights, fwd, np.ones((1, 1), dtype)).input_gradient[0, 0] == 1
    assert dg.jvp(noop, weights, fwd, np.ones((1, 1), dtype)).output[0, 0] == 1
