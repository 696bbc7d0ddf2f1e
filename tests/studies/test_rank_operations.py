"""The study of the operations of post-residual norms: ranks from the definitions, and what its notes say of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import Array

import depthgauge as dg
from depthgauge.studies.rank import operations
from depthgauge.studies.rank.networks import generated, inputs, network


def norm_and_jacobian(name: str, x: Array) -> tuple[Array, Array]:
    """Return a norm of one state, and its derivative, from the definitions."""
    width = len(x)
    centering, eye = np.eye(width) - 1 / width, np.eye(width)
    if name == "none":
        return x, eye
    if name == "center":
        return centering @ x, centering
    linear = centering if name.startswith("layer") else eye
    y = linear @ x
    size = math.sqrt(np.mean(y**2) + 1e-6)
    off = np.zeros_like(eye) if name.endswith("detached") else np.outer(y, y) / (width * size**2)
    return y / size, (eye - off) @ linear / size


def dense_jacobian(pre: str, post: str, beta: float, weights: dg.Weights, x: Array) -> Array:
    """Return the Jacobian of a stack of ReLU blocks, multiplied out in float64."""
    state, product = x.astype(np.float64), np.eye(weights.width)
    for layer in range(weights.depth):
        up = weights.up[layer].astype(np.float64)
        normed, by_state = norm_and_jacobian(pre, state)
        z = normed @ up
        branch, jacobian = np.maximum(z, 0), (z > 0)[:, None] * (up.T @ by_state)
        if weights.down is not None:
            down = weights.down[layer].astype(np.float64)
            branch, jacobian = branch @ down, down.T @ jacobian
        state, by_sum = norm_and_jacobian(post, state + beta * branch)
        product = by_sum @ (product + beta * jacobian @ product)
    return np.asarray(product)


@pytest.mark.parametrize("matrices", [1, 2])
def test_ranks_are_those_of_the_products_multiplied_out(matrices: int) -> None:
    width, depths, beta = 20, (2, 4), 0.4
    found = operations.ranks(matrices, beta, width, ("none", "rms"), operations.POST_NORMS, depths, 3)
    dims, ranks = found["effective_rank"]
    assert dims == ("pre_norm", "post_norm", "depth")
    assert found["full_rank"] == width
    weights = generated(network("none", matrices=matrices), 4, width, 3).materialize()
    for i, pre in enumerate(("none", "rms")):
        for j, post in enumerate(operations.POST_NORMS):
            for k, depth in enumerate(depths):
                product = dense_jacobian(pre, post, beta, weights[:depth], inputs(3, 1, width)[0])
                want = dg.spread(product).effective_rank
                assert ranks[i, j, k] == pytest.approx(want, rel=2e-5), (pre, post, depth)


@pytest.mark.parametrize("matrices", [1, 2])
def test_without_pre_norm_rescaling_is_free(matrices: int) -> None:
    _, ranks = operations.ranks(matrices, 0.5, 48, ("none", "rms"), ("none", "rms_detached"), (24,), 0)[
        "effective_rank"
    ]
    free, damped = ranks[:, 0, 0] - ranks[:, 1, 0]
    assert free == pytest.approx(0, abs=1e-3)
    assert damped > 5


@pytest.mark.parametrize("matrices", [1, 2])
def test_projections_of_a_homogeneous_stack_come_down_to_the_last(matrices: int) -> None:
    weights = generated(network("none", matrices=matrices), 6, 16, 1).materialize()
    x = inputs(1, 1, 16)[0]
    rescaled, projected = (dense_jacobian("none", post, 0.5, weights, x) for post in ("rms_detached", "rms"))
    block = network("none", matrices=matrices, beta=0.5).replace(post_norm="rms", eps=0.0)
    last = dg.forward(block, weights, x[None]).output[0].astype(np.float64)
    off = np.eye(16) - np.outer(last, last) / (last @ last)
    np.testing.assert_allclose(projected, off @ rescaled, atol=2e-5)


@pytest.mark.parametrize("pre", ["none", "rms"])
def test_all_projections_together_take_one_direction(pre: str) -> None:
    weights = generated(network("none"), 12, 24, 2).materialize()
    values = np.linalg.svd(dense_jacobian(pre, "rms", 0.3, weights, inputs(2, 1, 24)[0]), compute_uv=False)
    assert values[-1] < 1e-5 * values[0]
    assert values[-2] > 1e-2 * values[0]


def test_costs_are_what_is_lost_and_bounded_by_what_was_published() -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")
    depths, seeds = (2, 4), 3
    shape = (2, 2, 2, len(operations.POST_NORMS), len(depths), seeds)
    ranks = np.full(shape, 200.0)
    ranks[..., operations.POST_NORMS.index("rms"), :, :] -= 0.9
    ranks[..., operations.POST_NORMS.index("layer"), 1, :] -= 1.5
    ranks[:, 1, ..., operations.POST_NORMS.index("rms_detached"), 1, :] += 7
    dims = ("matrices", "strength", "pre_norm", "post_norm", "depth", "seed")
    result = xarray.Dataset(
        {"effective_rank": (dims, ranks), "full_rank": 256},
        coords={
            "matrices": [1, 2],
            "strength": list(operations.STRENGTHS),
            "pre_norm": list(operations.PRE_NORMS),
            "post_norm": list(operations.POST_NORMS),
            "depth": list(depths),
        },
    )
    results = {"ranks": result}
    at = {"matrices": 1, "strength": operations.WEAK, "pre_norm": "rms", "depth": 4}
    np.testing.assert_allclose(operations.cost(results, "projection of rms").sel(at), 0.9)
    np.testing.assert_allclose(operations.cost(results, "projection of layer").sel(at), 1.5)
    found = {finding.name: finding for finding in operations.OPERATIONS.findings(results)}
    layer = found["projection of layer, M = 2, Pre-Norm: most directions lost (strength 0.1, L = 4)"]
    assert layer.measured.mean == pytest.approx(1.5)
    assert layer.agrees is False
    rms = found["projection of rms, M = 2, Pre-Norm: most directions lost (strength 0.5, L = 4)"]
    assert rms.measured.mean == pytest.approx(7.9)
    free = found["rescaling, M = 2, no Pre-Norm: most directions lost (strength 0.1, L = 2)"]
    assert free.measured.mean == 0
    assert free.agrees
