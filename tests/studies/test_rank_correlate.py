"""The study of branches made alike: what its cells measure, from the definitions, and the theory it is held against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from relu_branches import dense_branches

import depthgauge as dg
from depthgauge.studies.rank import correlate
from depthgauge.studies.rank.branches import branch_jacobians
from depthgauge.studies.rank.fits import contour_exponent
from depthgauge.studies.rank.networks import generated, inputs, network


def blocks_alike(matrices: int, depth: int, width: int, rho: float, seed: int) -> dg.Weights:
    drawn = generated(network("pre", matrices=matrices), depth + 1, width, seed).materialize()
    return correlate.alike(drawn, rho)


def test_blocks_are_correlated_by_rho_and_keep_their_variance() -> None:
    for rho in (0.0, 0.3, 1.0):
        weights = blocks_alike(2, 4, 128, rho, 5)
        assert weights.depth == 4
        assert weights.down is not None
        for array in (weights.up, weights.down):
            rows = array.reshape(4, -1) * math.sqrt(128)
            found = rows @ rows.T / rows.shape[1]
            np.testing.assert_allclose(found, rho + (1 - rho) * np.eye(4), atol=0.05)


def test_no_blocks_differ_at_one_and_none_is_changed_at_zero() -> None:
    drawn = generated(network("pre"), 4, 16, 2).materialize()
    np.testing.assert_array_equal(correlate.alike(drawn, 0.0).up, drawn.up[1:])
    np.testing.assert_array_equal(correlate.alike(drawn, 1.0).up, np.broadcast_to(drawn.up[0], (3, 16, 16)))


@pytest.mark.parametrize("matrices", [1, 2])
def test_the_ratio_is_that_of_the_first_path_order(matrices: int) -> None:
    rhos, depths = (0.0, 0.3, 1.0), (1, 3, 7)
    dims, found = correlate.accumulated(matrices, 24, rhos, depths, 3)["ratio"]
    assert dims == ("rho", "depth")
    block = network("pre", beta=correlate.WEAK, matrices=matrices)
    for row, rho in zip(found, rhos, strict=True):
        weights = blocks_alike(matrices, 7, 24, rho, 3)
        for ratio, depth in zip(row, depths, strict=True):
            paths = dg.path_norms(block, weights[:depth], inputs(3, 1, 24), 1)
            assert ratio == pytest.approx(paths.norms[1, 0] / paths.predicted[1, 0], rel=1e-5)
    np.testing.assert_allclose(found[:, 0], 1, rtol=1e-6)  # one branch alone


@pytest.mark.parametrize("matrices", [1, 2])
def test_branch_jacobians_are_their_formulas(matrices: int) -> None:
    weights, x = blocks_alike(matrices, 3, 20, 0.3, 1), inputs(1, 1, 20)
    found = branch_jacobians(network("pre", beta=0.7, matrices=matrices), weights, x)
    np.testing.assert_allclose(found, dense_branches(weights, 0.7, x), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [1, 2])
@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_branches_are_as_alike_as_predicted(matrices: int, rho: float) -> None:
    cosines = []
    for seed in range(6):
        first, second = dense_branches(blocks_alike(matrices, 2, 128, rho, seed), 1e-3, inputs(seed, 1, 128))
        cosines.append(np.sum(first * second) / (np.linalg.norm(first) * np.linalg.norm(second)))
    assert np.mean(cosines) == pytest.approx(correlate.likeness(rho, matrices), abs=0.015)
    assert correlate.likeness(0.0, matrices) == 0
    assert correlate.likeness(1.0, matrices) == 1


def test_outputs_are_alike_before_jacobians_are() -> None:
    """Of ReLU branches, whose hidden units have a mean, which is why contours flatten before they steepen."""
    depth, cosines = 100, []
    for seed in range(4):
        weights, x = blocks_alike(2, depth, 64, 0.1, seed), np.broadcast_to(inputs(seed, 1, 64), (depth, 1, 64))
        outputs = dg.forward(network("pre").replace(skip_scale=0.0), weights.as_replicates(), x).output[:, 0]
        grown = np.sum(outputs.sum(axis=0) ** 2) / np.sum(outputs**2)  # 1 + (L - 1) c with cosine c
        cosines.append((grown - 1) / (depth - 1))
    assert np.mean(cosines) > 4 * correlate.likeness(0.1, 2)


@pytest.mark.parametrize("matrices", [1, 2])
@pytest.mark.parametrize("depth", [12, 24, 96])
def test_the_rho_that_breaks_the_law_is_read_off_the_curve(matrices: int, depth: int) -> None:
    want = correlate.breaking_rho(depth, matrices)
    assert math.sqrt(1 + (depth - 1) * correlate.likeness(want, matrices)) == pytest.approx(correlate.THRESHOLD)
    curve = np.sqrt([1 + (depth - 1) * correlate.likeness(rho, matrices) for rho in correlate.RHOS])
    curve[0] = 0.998  # as noise has it
    assert correlate.measured_breaking_rho(np.array(correlate.RHOS), curve) == pytest.approx(want, rel=0.02)
    assert math.isnan(correlate.measured_breaking_rho(np.array(correlate.RHOS), np.ones(len(correlate.RHOS))))


def test_no_rho_breaks_the_law_of_one_block() -> None:
    assert math.isnan(correlate.breaking_rho(1, 2))


def test_ranks_are_those_of_the_products_multiplied_out() -> None:
    width, depths, beta = 24, (2, 5), 0.5
    dims, found = correlate.ranks(0.3, width, (beta,), depths, 7)["rank"]
    assert dims == ("strength", "depth")
    product = np.eye(width)
    wanted = {}
    for layer, jacobian in enumerate(dense_branches(blocks_alike(2, 5, width, 0.3, 7), beta, inputs(7, 1, width)), 1):
        product = product + jacobian @ product
        share = np.linalg.svd(product, compute_uv=False)
        share /= share.sum()
        wanted[layer] = math.exp(-np.sum(share * np.log(share))) / width
    np.testing.assert_allclose(found[0], [wanted[depth] for depth in depths], rtol=1e-5)


def test_contours_steepen_from_the_square_root_of_depth_to_depth() -> None:
    depths = (8, 16, 32)

    def exponents(rho: float) -> list[float]:
        samples: list[Any] = [correlate.ranks(rho, 64, correlate.STRENGTHS, depths, seed)["rank"][1] for seed in (0, 1)]
        return [contour_exponent(correlate.STRENGTHS, depths, rank, 0.8) for rank in samples]

    assert np.mean(exponents(0.0)) == pytest.approx(-0.5, abs=0.08)
    assert np.mean(exponents(1.0)) == pytest.approx(-1.0, abs=0.05)
