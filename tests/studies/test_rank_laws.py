"""The studies skip, ratio and depth: their cells against the definition, and the laws they state at a small size."""

from __future__ import annotations

import numpy as np
import pytest
from problems import effective_rank

pytest.importorskip("xarray")
pytest.importorskip("scipy")

from depthgauge.studies.rank import STUDIES, depth, ratio, run_study, skip
from depthgauge.studies.rank.networks import generated, inputs, network

WIDTH = 12


def rank_of(matrix: np.ndarray) -> float:
    """Return the effective rank of a matrix, by LAPACK."""
    return effective_rank(np.linalg.svd(matrix.astype(np.float64), compute_uv=False))


def rms(h: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = h / np.sqrt(np.mean(h**2) + 1e-6)
    return scaled


def rms_jacobian(h: np.ndarray) -> np.ndarray:
    """Return d rms(h)[j] / d h[i] at [j, i]."""
    size = np.sqrt(np.mean(h**2) + 1e-6)
    jacobian: np.ndarray = np.eye(len(h)) / size - np.outer(h, h) / (len(h) * size**3)
    return jacobian


def by_hand(placement: str, beta: float, alpha: float, layers: int, seed: int, skip: float = 1.0) -> np.ndarray:
    """Return the Jacobian of a ReLU stack with two matrices a branch, multiplied out from the definition in float64."""
    weights = generated(network("pre"), layers, WIDTH, seed).materialize()
    assert weights.down is not None
    h = inputs(seed, 1, WIDTH)[0].astype(np.float64)
    total = np.eye(WIDTH)
    for up, down in zip(weights.up.astype(float), weights.down.astype(float), strict=True):
        u, du = (rms(h), rms_jacobian(h)) if placement == "pre" else (h, np.eye(WIDTH))
        z = alpha * (u @ up)
        r = alpha * (np.maximum(z, 0) @ down)
        dr = alpha**2 * (down.T * (z > 0)) @ up.T @ du
        if placement == "output":
            r, dr = rms(r), rms_jacobian(r) @ dr
        h, dh = skip * h + beta * r, skip * np.eye(WIDTH) + beta * dr
        if placement == "post":
            h, dh = rms(h), rms_jacobian(h) @ dh
        total = dh @ total
    return total


@pytest.mark.parametrize("placement", depth.PLACEMENTS)
def test_depth_is_the_rank_of_the_jacobian(placement: str) -> None:
    strengths, depths = (0.1, 0.7), (1, 3, 6)
    found = depth.ranks(placement=placement, matrices=2, width=WIDTH, strengths=strengths, depths=depths, seed=3)[
        "rank"
    ][1]
    for row, strength in zip(found, strengths, strict=True):
        for value, layers in zip(row, depths, strict=True):
            truth = rank_of(by_hand(placement, strength, 1.0, layers, seed=3)) / WIDTH
            assert value == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("placement", ratio.PLACEMENTS)
def test_ratio_holds_the_strength(placement: str) -> None:
    """Beta follows from alpha, and both reach the network: with GELU the ranks of one strength differ."""
    options = {"placement": placement, "width": WIDTH, "strengths": (0.4,), "alphas": (0.5, 2.0), "depths": (5,)}
    found = ratio.ranks(branch="relu 2", precision="float64", seed=1, **options)["rank"][1]  # type: ignore[arg-type]
    weights = generated(network("pre"), 5, WIDTH, 1)
    assert weights.dtype == np.float32
    assert found[0, 0, 0] == pytest.approx(found[0, 1, 0], rel=1e-12)
    single = ratio.ranks(branch="relu 2", precision="float32", seed=1, **options)["rank"][1]  # type: ignore[arg-type]
    for value, alpha in zip(single[0, :, 0], (0.5, 2.0), strict=True):
        truth = rank_of(by_hand(placement, 0.4 / alpha**2, alpha, 5, seed=1)) / WIDTH
        assert value == pytest.approx(truth, rel=1e-4)
    smooth = ratio.ranks(branch="gelu 2", precision="float64", seed=1, **options)["rank"][1]  # type: ignore[arg-type]
    assert abs(smooth[0, 0, 0] - smooth[0, 1, 0]) > 1e-4


def test_skip_and_plain() -> None:
    found = skip.ranks(expansion=1, width=WIDTH, skips=(skip.PLAIN, "beta = 0.3"), layers=(0, 1, 4), seed=2)["rank"][1]
    assert found[:, 0] == pytest.approx(1)
    for column, layers in ((1, 1), (2, 4)):
        plain = by_hand("pre", 1.0, 1.0, layers, seed=2, skip=0.0)
        assert found[0, column] == pytest.approx(rank_of(plain) / WIDTH, rel=1e-4)
        beside = by_hand("pre", 0.3, 1.0, layers, seed=2)
        assert found[1, column] == pytest.approx(rank_of(beside) / WIDTH, rel=1e-4)


def test_law_of_depth_in_small() -> None:
    """Four times the depth is twice the strength, for weak branches; Post-Norm falls to nothing, Pre-Norm does not."""
    result = run_study(STUDIES["depth"], seeds=3, width=48, depths=(6, 12, 24, 48), progress=False)
    found = {finding.name: finding for finding in result.findings}
    for title in ("Pre-Norm", "Post-Norm", "Output-Norm"):
        assert found[f"{title}: exponent s of the contour at rank 0.9"].measured.mean == pytest.approx(-0.5, abs=0.08)
    assert found["Post-Norm: rank at strength 4, depth 48"].measured.high < 0.1
    assert found["Pre-Norm: rank at strength 4, depth 48"].measured.low > 0.2


def test_symmetry_of_relu_is_exact() -> None:
    result = run_study(STUDIES["ratio"], seeds=2, width=16, depths=(12,), progress=False)
    held = [finding for finding in result.findings if finding.expected is not None]
    exact = [finding for finding in held if "Output-Norm" not in finding.name]
    assert len(exact) == 4
    dropped = [finding for finding in held if "Output-Norm" in finding.name]
    assert len(dropped) == 2
    assert all(1e-9 < finding.measured.mean < 1e-3 for finding in dropped)  # but for eps, 1e-6
    assert all(finding.agrees for finding in exact)
    assert all(0 <= finding.measured.mean < 1e-12 for finding in exact)
    smooth = [finding for finding in result.findings if finding.expected is None]
    assert all(finding.measured.mean > 1e-3 for finding in smooth)
