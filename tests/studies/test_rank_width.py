"""The study width: free products against random matrices and the cubic they solve; cells against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from problems import effective_rank

import depthgauge as dg
from depthgauge.studies.rank import STUDIES, run_study, width
from depthgauge.studies.rank.free_products import FreeProduct, marchenko_pastur, marchenko_pastur_below
from depthgauge.studies.rank.networks import generated, unit_inputs

for package in ("xarray", "scipy"):
    pytest.importorskip(package)

Floats = npt.NDArray[np.float64]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("law", ["none", "mask", "spread", "gated"])
def test_free_products_are_those_of_large_matrices(law: str, ratio: float, rng: np.random.Generator) -> None:
    d = 200
    m = round(ratio * d)
    diagonal = {
        "none": np.ones(m),
        "mask": 1.0 * (np.arange(m) % 3 == 0),
        "spread": np.linspace(0, 1, m),
        "gated": np.where(np.arange(m) % 2 == 0, 0.1, 5.0),
    }[law]
    a, b = rng.standard_normal((d, m)), rng.standard_normal((m, d))
    want = effective_rank(np.linalg.svd(a * diagonal @ b, compute_uv=False)) / d
    found = FreeProduct(diagonal**2, np.full(m, 1 / m)).effective_rank(ratio)
    assert found == pytest.approx(want, rel=0.02)


@pytest.mark.parametrize("columns", [0.4, 1.0, 1.7, 6.0])
def test_two_gaussian_factors_are_the_roots_of_a_cubic(columns: float) -> None:
    # (c + y)(1 + y)² = y w, y = w G(w) - 1 with the resolvent G of the squared singular values w.
    edge = (-columns + (columns**2 + 8 * columns) ** 0.5) / 4
    top = float(np.sqrt((columns + edge) * (1 + edge) ** 2 / edge))
    # Cubed, so that the density at s = 0, which for c = 1 is s^(-1/3), stays bounded.
    grid = (np.arange(5000) + 0.5) / 5000
    s, step = top * grid**3, 3 * top * grid**2 / 5000
    density = np.zeros_like(s)
    for number, w in enumerate(s**2):
        roots = np.roots([1.0, columns + 2, 1 + 2 * columns - w, columns])
        # The density in s is 2 s times -Im G / pi.
        density[number] = 2 * s[number] * np.max(roots.imag) / (np.pi * w)
    mass = np.sum(density * step)
    assert mass == pytest.approx(min(columns, 1), rel=2e-3)
    mean = np.sum(s * density * step)
    want = mean * np.exp(-np.sum(s * np.log(s) * density * step) / mean)
    assert FreeProduct.masked().effective_rank(columns) == pytest.approx(want, rel=2e-3)


def test_free_products_in_their_limits() -> None:
    two = FreeProduct.masked()
    # Few units: all singular values are alike.
    assert two.effective_rank(1e-4) / 1e-4 == pytest.approx(1, abs=1e-3)
    # Very many: one square Gaussian matrix, with a quarter circle of singular values.
    s = (np.arange(200000) + 0.5) / 100000
    density = np.sqrt(4 - s**2) / np.pi / 100000
    mean = np.sum(s * density)
    assert two.effective_rank(1e4) == pytest.approx(mean * np.exp(-np.sum(s * np.log(s) * density) / mean), abs=1e-4)
    for ratio in (0.2, 1.0, 5.0):
        # A mask thins the units out, and a factor is no matter.
        assert FreeProduct.masked(0.3).effective_rank(ratio) == pytest.approx(two.effective_rank(0.3 * ratio), rel=1e-9)
        assert FreeProduct([7.0], [1.0]).effective_rank(ratio) == pytest.approx(two.effective_rank(ratio), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_marchenko_pastur(ratio: float, rng: np.random.Generator) -> None:
    from scipy.integrate import quad

    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    for power, want in enumerate((min(ratio, 1), ratio, ratio + ratio**2)):
        moment = quad(lambda x: float(marchenko_pastur(x, ratio)) * x**power, low, high, limit=200)  # noqa: B023
        assert moment[0] == pytest.approx(want, rel=1e-6)
    assert np.all(marchenko_pastur([low - 0.01, high + 0.01, -1.0], ratio) == 0)
    for x in (low, 0.5 * (low + high), high, 0.1 * low + 0.9 * high):
        below = max(1 - ratio, 0) + quad(lambda x: float(marchenko_pastur(x, ratio)), low, x, limit=200)[0]
        assert marchenko_pastur_below(x, ratio) == pytest.approx(below, abs=1e-5)
    d = 250
    squares = np.linalg.svd(rng.standard_normal((d, round(ratio * d))) / d**0.5, compute_uv=False)[::-1] ** 2
    ranks = (np.arange(d)[d - len(squares) :] + 0.5) / d
    np.testing.assert_allclose(marchenko_pastur_below(squares, ratio), ranks, atol=0.015)


@pytest.mark.parametrize("branch", width.BRANCHES)
def test_a_jacobian_is_the_masked_up_projection_and_the_down_projection(branch: str) -> None:
    _, activation, kind = width.BRANCHES[branch]
    block = dg.Block(branch=kind, activation=activation, pre_norm="none", skip_scale=0.0)
    weights = generated(block, 1, 16, 5, 40).materialize()
    x = unit_inputs(5, width.INPUTS, 16)
    np.testing.assert_allclose(np.mean(x**2, axis=1), 1, rtol=1e-6)
    assert weights.down is not None
    masked = np.stack([width.masked_up(block, weights, row) for row in x])
    np.testing.assert_allclose((masked @ weights.down[0]).swapaxes(1, 2), dg.jacobian(block, weights, x), atol=1e-5)

    found = width.ranks(branch, 16, (0.05, 2.5), 5)
    want = [effective_rank(np.linalg.svd(one @ weights.down[0], compute_uv=False).astype(np.float64)) for one in masked]
    assert found["rank"][1][1] == pytest.approx(np.mean(want) / 16, rel=1e-5)
    assert found["share"][1][1] == pytest.approx(np.mean(np.sum(masked**2, axis=(1, 2))) / 40, rel=1e-5)
    assert found["rank"][1][0] <= 1.001 / 16  # one unit


def test_spectra_are_those_of_the_live_columns() -> None:
    found = width.spectra(24, (0.5, 3.0), 1)
    x = unit_inputs(1, width.INPUTS, 24)[0]
    for number, hidden in enumerate((12, 72)):
        block = dg.Block(pre_norm="none", skip_scale=0.0)
        up = generated(block, 1, 24, 1, hidden).materialize().up[0]
        live = up[:, x @ up > 0]
        want = np.zeros(24)
        values = np.linalg.svd(live, compute_uv=False)
        want[24 - len(values) :] = values[::-1] ** 2
        np.testing.assert_allclose(found["squares"][1][number], want, atol=1e-5)
        share = live.shape[1] / 24
        below = marchenko_pastur_below(want[24 - len(values) :], share)
        ranks = (np.arange(24 - len(values), 24) + 0.5) / 24
        assert found["distance"][1][number] == pytest.approx(np.max(np.abs(ranks - below)), abs=1e-5)


def test_free_products_of_branches_are_measured() -> None:
    ratios = (0.5, 1.0, 3.0)
    for branch in width.BRANCHES:
        cells = [width.ranks(branch, 128, ratios, seed) for seed in range(4)]
        ranks = np.mean([cell["rank"][1] for cell in cells], axis=0)
        law = width.free_product(branch)
        np.testing.assert_allclose(ranks, [law.effective_rank(ratio) for ratio in ratios], atol=0.02, err_msg=branch)
        shares = np.mean([cell["share"][1] for cell in cells])
        assert shares == pytest.approx(width.share(branch), rel=0.05), branch


@pytest.mark.slow
def test_the_study_agrees_with_what_it_expects() -> None:
    result = run_study(STUDIES["width"], quick=True, seeds=4, width=128)
    findings = {finding.name: finding for finding in result.findings}
    assert len(findings) == len(result.findings) == 3 * len(width.BRANCHES) + len(width.SPECTRA)
    assert [name for name, finding in findings.items() if not finding.agrees] == []
    # Without dead units it takes fewer than 1/p, gated ones more.
    passed = {name.partition(":")[0]: at.measured.mean for name, at in findings.items() if "two square" in name}
    shares = {title: width.share(branch) for branch, (title, *_) in width.BRANCHES.items()}
    assert passed["GELU"] < 0.9 / shares["GELU"]
    assert passed["gated SiLU"] > 1.5 / shares["gated SiLU"]
    rows: list[Any] = width._table(result.results)
    assert {len(row) for row in rows} == {1 + len(width.QUICK_RATIOS)}
