"""The native backend against the reference over all block options, both precisions, and sizes around vector widths.

Bounds are relative: 1e-12 in float64 and 1e-5 in float32, to the largest magnitude along the way (of a state for
outputs, of a gradient for gradients).  Some problems magnify rounding, the reference's as much as the native backend's:
rows of fewer than 16 features, which can come close to constant before a norm, are allowed ten times that, and gated
branches, which grow like squares, again ten times.  Derivatives jump at the kinks of relu, leaky_relu and abs; examples
that come so close to one that rounding may decide get no cotangent or tangent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Array, Problem, arrays_of, assert_close, random_weights

import depthgauge as dg
from depthgauge.backends.reference.block import Layer
from depthgauge.equation import ACTIVATIONS, BRANCHES, NORMS
from depthgauge.stacks.binding import build_stack

pytest.importorskip("depthgauge._core")

TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}
KINKED = ("relu", "leaky_relu", "abs")
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 67)
HIDDEN = (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 33, 50, 67, 96)
BATCHES = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 65)
DEPTHS = (1, 2, 3, 5, 8)
LEVELS = (0.0, 0.3, 0.5, 1.0)
# Replicate axes of the weights and of the input.
LEADING = [((), ()), ((3,), ()), ((), (3,)), ((2,), (2,)), ((2, 1), (3,)), ((1,), (4,))]


@dataclass(frozen=True)
class Case:
    """Everything that a comparison depends on; plain data, so that a failure prints it whole."""

    branch: str
    activation: str
    norms: tuple[str, str, str]
    dtype: str
    seed: int
    width: int
    hidden: int
    batch: int
    depth: int
    leading: tuple[tuple[int, ...], tuple[int, ...]]
    vectors: bool
    scales: str
    eps: float

    def problem(self) -> Problem:
        """Return the problem, with examples near a kink silenced."""
        rng = np.random.default_rng(self.seed)
        scales: dict[str, Any] = {
            "residual": {"branch_scale": 0.5},
            "plain": {"skip_scale": 0.0},
            "layers": {
                "branch_scale": (0.2 + rng.random(self.depth)) * rng.choice([-1, 1], self.depth),
                "skip_scale": (0.5 + rng.random(self.depth)) * rng.choice([-1, 1], self.depth),
                "weight_scale": 1.25,
            },
            "no-op": {"branch_scale": 0.0},
        }[self.scales]
        block = dg.Block(
            branch=self.branch,
            activation=self.activation,
            pre_norm=self.norms[0],
            output_norm=self.norms[1],
            post_norm=self.norms[2],
            eps=self.eps,
            slope=0.2,
            dyt_alpha=0.7,
            **scales,
        )
        hidden = self.width if self.branch == "linear" else self.hidden
        of_weights, of_x = self.leading
        weights = random_weights(
            rng, block, self.depth, self.width, hidden, self.dtype, replicates=of_weights, vectors=self.vectors
        )
        replicates = np.broadcast_shapes(of_weights, of_x)
        x = rng.standard_normal((*of_x, self.batch, self.width)).astype(self.dtype)
        vector = rng.standard_normal((*replicates, self.batch, self.width)).astype(self.dtype)
        p = Problem(block, weights, x, vector)
        vector[near_kink(p)] = 0
        return p


def near_kink(p: Problem) -> Array:
    """Return which examples (R, B) come so close to a kink that rounding may decide on its side."""
    near = np.zeros(p.vector.shape[:-1], bool)
    if p.block.activation not in KINKED:
        return near
    fields: dict[str, Any] = {name: array.astype(np.float64) for name, array in p.weights.items()}
    wide = dg.Weights(**fields)
    fwd = dg.forward(p.block, wide, p.x.astype(np.float64), backend="reference")
    *replicates, batch, width = p.vector.shape
    margin = 1e-4 if p.x.dtype == np.float32 else 1e-10
    stack = build_stack(p.block, wide, tuple(replicates))
    for index in range(p.weights.depth):
        state = np.ascontiguousarray(fwd.states[..., index, :, :]).reshape(-1, batch, width)
        z = Layer(stack, index).forward(state).z
        # A zero that comes of exact zeros, as of a centred row of one feature, is the same everywhere.
        close = np.abs(z) < margin * max(1.0, float(np.max(np.abs(z))))
        near |= np.any(close & (z != 0), axis=-1).reshape(near.shape)
    return near


def options_of(index: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return sizes and scales: lists are cycled through, so that each value occurs, and paired by chance."""
    scales = ("residual", "layers", "plain", "layers", "residual", "no-op")[index % 6]
    width = int(rng.permutation(WIDTHS)[index % len(WIDTHS)])
    return {
        "seed": index,
        # A narrow stack without a skip path loses its signal to rounding, in any implementation.
        "width": max(width, 7) if scales == "plain" else width,
        "hidden": int(rng.permutation(HIDDEN)[index % len(HIDDEN)]),
        "batch": int(rng.permutation(BATCHES)[index % len(BATCHES)]),
        "depth": DEPTHS[index % len(DEPTHS)],
        "leading": LEADING[index % len(LEADING)],
        "vectors": index % 4 != 3,
        "scales": scales,
        "eps": (1e-2, 1e-6)[index % 2],
    }


def cases() -> list[Case]:
    """Every branch with every activation, and with every norm at every place; further norms by chance."""
    rng = np.random.default_rng(77)
    chosen = []
    for branch, activation, round_ in itertools.product(BRANCHES, ACTIVATIONS, range(3)):
        norms = [str(norm) for norm in rng.choice(NORMS, 3)] if round_ else ["rms", "none", "none"]
        chosen.append((branch, activation, norms))
    for branch, norm, place in itertools.product(BRANCHES, NORMS, range(3)):
        others = [str(name) for name in rng.choice(NORMS, 3)]
        others[place] = norm
        chosen.append((branch, str(rng.choice(ACTIVATIONS)), others))
    found = []
    for index, ((branch, activation, norms), dtype) in enumerate(itertools.product(chosen, ("float64", "float32"))):
        pre, output, post = norms
        found.append(Case(branch, activation, (pre, output, post), dtype, **options_of(index, rng)))
    return found


def compare(case: Case) -> None:
    """Assert that all results agree."""
    p = case.problem()
    tolerance = TOLERANCE[p.x.dtype] * (10 if case.width < 16 else 1) * (10 if case.branch == "gated" else 1)
    forwards = {
        name: dg.forward(p.block, p.weights, p.x, quantiles=LEVELS, cosine=True, backend=name)
        for name in ("native", "reference")
    }
    compare_forward(forwards["native"], forwards["reference"], tolerance)
    kept = dg.forward(p.block, p.weights, p.x, keep="activations", backend="native")
    for grads in (True, "rms", False):
        got, want = (
            dg.vjp(p.block, p.weights, fwd, p.vector, weight_grads=grads, quantiles=LEVELS) for fwd in forwards.values()
        )
        compare_backward(got, want, tolerance)
        same = arrays_of(dg.vjp(p.block, p.weights, kept, p.vector, weight_grads=grads, quantiles=LEVELS))
        for name, array in arrays_of(got).items():
            np.testing.assert_array_equal(same[name], array, err_msg=name)
    np.testing.assert_array_equal(
        dg.jvp(p.block, p.weights, kept, p.vector).output,
        dg.jvp(p.block, p.weights, forwards["native"], p.vector).output,
    )
    probes = np.stack([p.vector, 2 * p.vector[..., ::-1]])
    probed = [dg.vjp(p.block, p.weights, fwd, probes, quantiles=LEVELS) for fwd in forwards.values()]
    compare_backward(probed[0], probed[1], tolerance)
    pushed, wanted = (dg.jvp(p.block, p.weights, fwd, probes) for fwd in forwards.values())
    scale = float(np.max(wanted.rms, initial=0)) * np.sqrt(wanted.output[..., 0, 0].size or 1)
    scale = max(scale, float(np.max(np.abs(wanted.output), initial=0)))
    assert_close(pushed.output, wanted.output, tolerance, scale, "tangent")
    assert_close(pushed.rms, wanted.rms, tolerance, float(np.max(wanted.rms, initial=0)), "tangent rms")


def compare_forward(got: dg.Forward, want: dg.Forward, tolerance: float) -> None:
    scale = float(np.max(want.max_abs, initial=0))
    assert_close(got.output, want.output, tolerance, scale, "output")
    assert_close(got.states, want.states, tolerance, scale, "states")
    for name in ("rms", "max_abs", "batch_mean_norm", "state_quantiles"):
        length = np.sqrt(want.output.shape[-1]) if name == "batch_mean_norm" else 1
        assert_close(getattr(got, name), getattr(want, name), tolerance, scale * length, name)
    np.testing.assert_array_equal(got.nonfinite, want.nonfinite)
    assert_close(got.branch_rms, want.branch_rms, tolerance, max(scale, float(np.max(want.branch_rms))), "branch_rms")
    ratio = want.residual_ratio
    assert_close(
        got.residual_ratio, ratio, 10 * tolerance, max(1.0, float(np.max(ratio[np.isfinite(ratio)], initial=0)))
    )
    # A value within rounding of a threshold may fall on either side; the near ones are rare.
    batch, hidden = want.output.shape[-2], want.weights.hidden
    for name, count in (("live_fraction", batch * hidden), ("saturation", batch * hidden), ("dead_units", hidden)):
        difference = np.abs(getattr(got, name) - getattr(want, name)) * count
        allowed = 1 if tolerance > 1e-6 else 0
        assert np.max(difference) < allowed + 0.5, f"{name}: {np.max(difference)} units of {count} differ"
    assert got.cosine is not None
    assert want.cosine is not None
    assert_close(got.cosine, want.cosine, 10 * tolerance, 1.0, "cosine")
    assert got.derivative_quantiles is not None
    assert want.derivative_quantiles is not None
    # The derivative of a kinked activation is a step, so one unit on the other side may move a quantile by all of it.
    if want.block.activation not in KINKED or tolerance < 1e-6:
        assert_close(got.derivative_quantiles, want.derivative_quantiles, 10 * tolerance, 1.0, "derivative_quantiles")


def compare_backward(got: dg.Backward, want: dg.Backward, tolerance: float) -> None:
    scale = float(np.max(want.max_abs, initial=0))
    assert_close(got.input_gradient, want.input_gradient, tolerance, scale, "input_gradient")
    for name in ("rms", "max_abs", "gradient_quantiles"):
        assert_close(getattr(got, name), getattr(want, name), tolerance, scale, name)
    np.testing.assert_array_equal(got.nonfinite, want.nonfinite)
    assert set(arrays_of(got)) == set(arrays_of(want))
    # Sums over examples may cancel in one parameter and not in another, so all share one scale.
    theirs = arrays_of(got)
    gradients = {
        name: (array, theirs[name])
        for name, array in arrays_of(want).items()
        if name.startswith(("weights", "weight_rms", "branch_scale", "skip_scale"))
    }
    scale = max((float(np.max(np.abs(wanted), initial=0)) for wanted, _ in gradients.values()), default=0)
    for name, (wanted, found) in gradients.items():
        assert_close(found, wanted, 2 * tolerance, scale, name)


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.branch}-{case.activation}-{case.dtype}-{case.seed}")
def test_a_covering_sample_of_all_options(case: Case) -> None:
    compare(case)


@settings(max_examples=60)
@given(
    st.builds(
        Case,
        branch=st.sampled_from(BRANCHES),
        activation=st.sampled_from(ACTIVATIONS),
        norms=st.tuples(*[st.sampled_from(NORMS)] * 3),
        dtype=st.sampled_from(["float64", "float32"]),
        seed=st.integers(0, 2**32 - 1),
        width=st.integers(1, 70),
        hidden=st.integers(1, 100),
        batch=st.integers(1, 40),
        depth=st.integers(1, 8),
        leading=st.sampled_from(LEADING),
        vectors=st.booleans(),
        scales=st.sampled_from(["residual", "layers"]),
        eps=st.sampled_from([1e-2, 1e-5]),
    )
)
def test_any_options(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sizes_beyond_one_chunk_of_hidden_units(branch: str, dtype: str) -> None:
    case = Case(branch, "gelu", ("rms", "none", "none"), dtype, 5, 130, 1030, 37, 2, ((), ()), True, "residual", 1e-6)
    compare(case)
    compare(replace(case, activation="relu", width=64, hidden=2500, batch=300 if branch == "mlp" else 20))


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_replicates_that_share_more_examples_than_a_weight_gradient_adds_up_at_once(branch: str, dtype: str) -> None:
    # No replicate fills its last group of examples, so that there are gaps between them.
    case = Case(branch, "gelu", ("rms", "none", "none"), dtype, 5, 19, 53, 19, 2, ((), (30,)), True, "residual", 1e-6)
    compare(case)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_agree_about_values_that_are_not_finite(branch: str, activation: str) -> None:
    # Weights of few small integers make exact zeros common: of phi, of phi', and of what a gate multiplies.
    rng = np.random.default_rng(12)
    block = dg.Block.placed("none", branch=branch, activation=activation)
    shapes = [("up", (2, 3, 3)), ("down", (2, 3, 3)), ("gate", (2, 3, 3))][
        : {"linear": 1, "mlp": 2, "gated": 3}[branch]
    ]
    fields: dict[str, Any] = {name: rng.integers(-1, 2, shape).astype(float) for name, shape in shapes}
    weights = dg.Weights(**fields)
    x, vector = rng.integers(-1, 2, (2, 64, 3)).astype(float)
    vector[::4, 0], vector[1::4, 1], vector[2::4, 2] = np.nan, np.inf, -np.inf
    of = {
        name: (
            dg.vjp(block, weights, x, vector, backend=name).input_gradient,
            dg.jvp(block, weights, x, vector, backend=name).output,
        )
        for name in ("native", "reference")
    }
    for got, want in zip(of["native"], of["reference"], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_statistics_agree_about_values_that_are_not_finite(branch: str, activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(11)
    block = dg.Block(branch=branch, activation=activation, post_norm="rms")
    weights = random_weights(rng, block, 3, 9, 9, dtype)
    x = rng.standard_normal((19, 9)).astype(dtype)
    x[2, 3], x[7, 8] = np.nan, np.inf
    got, want = (dg.forward(block, weights, x, backend=name) for name in ("native", "reference"))
    np.testing.assert_array_equal(np.isfinite(got.states), np.isfinite(want.states))
    for name in ("nonfinite", "live_fraction", "dead_units", "saturation"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), atol=1e-12, err_msg=name)
    for name in ("rms", "max_abs", "branch_rms"):
        np.testing.assert_array_equal(np.isnan(getattr(got, name)), np.isnan(getattr(want, name)), err_msg=name)
