"""forward, vjp and jvp: properties that hold for every backend."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import arrays_of, assert_close, assert_same_bits, random_problem, random_weights

import depthgauge as dg
from depthgauge.equation import ACTIVATIONS, BRANCHES, NORMS

BLOCK = dg.Block(activation="gelu", post_norm="layer")
EXAMPLEWISE = ("output", "input_gradient")


def everything(p: Any, backend: str, **changes: Any) -> list[Any]:
    """Return the results of all functions, a field of the problem replaced."""
    p = dataclasses.replace(p, **changes)
    fwd = dg.forward(p.block, p.weights, p.x, quantiles=[0.25, 1], cosine=True, backend=backend)
    return [
        fwd,
        dg.vjp(p.block, p.weights, fwd, p.vector, weight_grads=True, quantiles=[0.5]),
        dg.jvp(p.block, p.weights, fwd, p.vector),
    ]


@given(
    st.sampled_from(BRANCHES),
    st.sampled_from(ACTIVATIONS),
    st.lists(st.sampled_from(NORMS), min_size=3, max_size=3),
    st.integers(0, 2**32),
)
def test_permuting_examples_permutes_rows_alone(branch: str, activation: str, norms: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = dg.Block(
        branch=branch, activation=activation, pre_norm=norms[0], output_norm=norms[1], post_norm=norms[2], eps=0.01
    )
    p = random_problem(rng, block, 3, 6, 7, 9)
    order = rng.permutation(9)
    for backend in dg.available_backends():
        plain = everything(p, backend)
        moved = everything(p, backend, x=p.x[order], vector=p.vector[order])
        for want, got in zip(plain, moved, strict=True):
            theirs = arrays_of(got)
            for name, array in arrays_of(want).items():
                expected = array[order] if name.removesuffix(".") in EXAMPLEWISE else array
                assert_close(theirs[name], expected, 1e-11, max(1.0, float(np.max(np.abs(array)))), name)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("branch", BRANCHES)
def test_examples_never_couple(rng: np.random.Generator, norm: str, branch: str, backend: str) -> None:
    p = random_problem(rng, dg.Block(branch=branch, pre_norm=norm, output_norm=norm, post_norm=norm), 3, 9, 7, 17)
    clean = everything(p, backend)
    for position in (0, 4, 8, 16):
        x = p.x.copy()
        x[position, position % 9] = np.nan
        spoiled = everything(p, backend, x=x)
        others = np.arange(17) != position
        assert np.all(np.isnan(spoiled[0].states[0, position]) == (np.arange(9) == position % 9))
        assert np.isnan(spoiled[0].rms[0])
        for want, got, name in zip(clean, spoiled, ("output", "input_gradient", "output"), strict=True):
            assert_same_bits(getattr(got, name)[others], getattr(want, name)[others], name)


def test_replicates_are_one_call_each(rng: np.random.Generator, backend: str, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch="gated", activation="silu", branch_scale=[0.5, 1.0, 2.0])
    weights = random_weights(rng, block, 3, 6, 7, dtype, replicates=(2, 1))
    x = rng.standard_normal((3, 5, 6)).astype(dtype)
    g = rng.standard_normal((2, 3, 5, 6)).astype(dtype)
    fwd = dg.forward(block, weights, x, backend=backend, quantiles=[0.5], cosine=True)
    bwd = dg.vjp(block, weights, fwd, g)
    assert fwd.output.shape == (2, 3, 5, 6)
    assert fwd.rms.shape == (2, 3, 4)
    assert fwd.branch_rms.shape == (2, 3, 3)
    assert fwd.states.shape == (2, 3, 4, 5, 6)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    for i in range(2):
        fields: dict[str, Any] = {name: array[i, 0] for name, array in weights.items()}
        own = dg.Weights(**fields)
        for j in range(3):
            alone = dg.forward(block, own, x[j], backend=backend, quantiles=[0.5], cosine=True)
            for name, array in arrays_of(alone).items():
                theirs = arrays_of(fwd)[name][i, j]
                assert_close(np.asarray(theirs), array, tolerance, max(1.0, float(np.max(np.abs(array)))), name)
            assert_close(fwd.states[i, j], alone.states, tolerance)
            pulled = dg.vjp(block, own, alone, g[i, j])
            assert_close(bwd.input_gradient[i, j], pulled.input_gradient, tolerance)


def test_each_block_as_its_own_stack(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="tanh"), 4, 6, 7, 5)
    whole = dg.forward(p.block, p.weights, p.x, backend=backend)
    steps = dg.forward(p.block, p.weights.as_replicates(), whole.states[:-1], backend=backend)
    assert_close(steps.output, whole.states[1:], 1e-14)
    assert_close(steps.branch_rms[:, 0], whole.branch_rms, 1e-14)


def test_stacks_compose(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK, 5, 6, 7, 4)
    half = dg.forward(p.block, p.weights[:2], p.x, backend=backend)
    rest = dg.forward(p.block, p.weights[2:], half.output, backend=backend)
    assert_close(rest.output, dg.forward(p.block, p.weights, p.x, backend=backend).output, 1e-14)
    pulled = dg.vjp(p.block, p.weights[:2], p.x, np.asarray(
        dg.vjp(p.block, rest.weights, rest, p.vector).input_gradient), backend=backend)  # fmt: skip
    assert_close(
        pulled.input_gradient, dg.vjp(p.block, p.weights, p.x, p.vector, backend=backend).input_gradient, 1e-13
    )


def test_derivatives_from_the_input_are_those_from_its_forward(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK, replicates=(2,))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    for call in (dg.vjp, dg.jvp):
        want, got = call(p.block, p.weights, fwd, p.vector), call(p.block, p.weights, p.x, p.vector, backend=backend)
        for name, array in arrays_of(want).items():
            assert_same_bits(arrays_of(got)[name], array, name)


def test_scaling_the_input_scales_a_homogeneous_stack(rng: np.random.Generator, backend: str) -> None:
    for activation in ("relu", "abs", "identity", "leaky_relu"):
        p = random_problem(rng, dg.Block.placed("none", activation=activation), 4, 6, 7, 5, vectors=False)
        plain, scaled = everything(p, backend), everything(p, backend, x=4 * p.x)
        assert_same_bits(scaled[0].output, 4 * plain[0].output)
        assert_same_bits(scaled[1].input_gradient, plain[1].input_gradient)
        np.testing.assert_allclose(scaled[0].rms, 4 * plain[0].rms, rtol=1e-15)
        np.testing.assert_array_equal(scaled[0].live_fraction, plain[0].live_fraction)


def test_scales_multiply_their_terms(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="silu"), 1, 6, 7, 5)
    # The post gain and shift apply to the sum, so they are taken off first.
    fields: dict[str, Any] = {name: array for name, array in p.weights.items() if not name.startswith("post")}
    plain = dg.Weights(**fields)
    branch = dg.forward(p.block.replace(skip_scale=0), plain, p.x, backend=backend).output
    both = dg.forward(p.block.replace(skip_scale=-0.5, branch_scale=3), plain, p.x, backend=backend).output
    assert_close(both, 3 * branch - 0.5 * p.x, 1e-14)


def test_a_unit_scale_of_weights_changes_nothing_but_products(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(branch="gated"), 2, 6, 7, 5)
    halved: dict[str, Any] = {
        name: array / 2 if name in ("up", "down", "gate") else array for name, array in p.weights.items()
    }
    got = dg.forward(p.block.replace(weight_scale=2), dg.Weights(**halved), p.x, backend=backend)
    assert_close(got.output, dg.forward(p.block, p.weights, p.x, backend=backend).output, 1e-14)


def test_scalars_are_rounded_once_to_the_dtype(backend: str) -> None:
    x = np.full((1, 1), 3.0, np.float32)
    weights = dg.Weights(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32))
    fwd = dg.forward(dg.Block.placed("none", skip_scale=0.1), weights, x, backend=backend)
    assert fwd.output[0, 0] == np.float32(0.1) * np.float32(3)


@pytest.mark.parametrize("sizes", [{"width": 0}, {"batch": 0}, {"width": 0, "batch": 0, "hidden": 0}], ids=str)
def test_statistics_of_nothing_are_nan(rng: np.random.Generator, sizes: dict[str, Any], backend: str) -> None:
    fwd, bwd, tan = everything(random_problem(rng, BLOCK, **sizes), backend)
    for statistic in (fwd.rms, fwd.max_abs, fwd.batch_mean_norm, bwd.rms, tan.rms, fwd.branch_rms):
        assert np.all(np.isnan(statistic))
    assert not np.any(fwd.nonfinite)
    assert len(fwd.table()) == 4


@pytest.mark.parametrize("branch", BRANCHES)
def test_no_blocks_change_nothing(rng: np.random.Generator, branch: str, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, dg.Block(branch=branch, post_norm="layer"), 0, dtype=dtype, replicates=(2,))
    fwd, bwd, tan = everything(p, backend)
    assert_same_bits(fwd.output, p.x)
    assert_same_bits(bwd.input_gradient, p.vector)
    assert_same_bits(tan.output, p.vector)


def test_weights_without_replicates_have_no_gradient(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK, replicates=(1,))
    x = np.zeros((0, 4, 5))
    bwd = dg.vjp(p.block, p.weights, x, x, weight_grads=True, backend=backend)
    assert bwd.weights is not None
    for name, gradient in bwd.weights.items():
        assert gradient.shape == getattr(p.weights, name).shape
        assert not np.any(gradient), name


@pytest.mark.parametrize(("hidden", "batch", "want"), [(0, 4, np.nan), (7, 0, 0.0)])
def test_rms_of_gradients_of_nothing(
    rng: np.random.Generator, hidden: int, batch: int, want: float, backend: str
) -> None:
    p = random_problem(rng, BLOCK, 2, 5, hidden, batch)
    bwd = dg.vjp(p.block, p.weights, p.x, p.vector, weight_grads="rms", backend=backend)
    assert bwd.weight_rms is not None
    for name in ("up", "down", "b_up"):
        np.testing.assert_array_equal(bwd.weight_rms[name], [want, want], err_msg=name)


def test_a_branch_without_hidden_units_is_its_bias(rng: np.random.Generator, backend: str) -> None:
    bias = rng.standard_normal((1, 3))
    weights = dg.Weights(np.zeros((1, 3, 0)), np.zeros((1, 0, 3)), b_down=bias)
    x = rng.standard_normal((4, 3))
    fwd = dg.forward(dg.Block(), weights, x, backend=backend)
    assert_close(fwd.output, x + bias, 1e-15)
    for name in ("live_fraction", "dead_units", "saturation"):
        assert np.all(np.isnan(getattr(fwd, name))), name
