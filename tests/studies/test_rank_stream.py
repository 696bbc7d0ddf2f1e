"""The study stream: growth against the definition in NumPy and against theory; moments of activations against SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg
from depthgauge.studies.rank import STUDIES, run_study, stream
from depthgauge.studies.rank.gaussian import ACTIVATION_TITLES, moments, normal_nodes, value_and_slope

for package in ("xarray", "scipy"):
    pytest.importorskip(package)

DEPTHS = (3, 5, 9)


def closed_form(activation: str) -> tuple[Any, Any]:
    from scipy.special import erf, expit

    def normal(z: Any) -> Any:
        return (1 + erf(z / 2**0.5)) / 2

    def density(z: Any) -> Any:
        return np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5

    pairs: dict[str, tuple[Any, Any]] = {
        "relu": (lambda z: z * (z > 0), lambda z: 1.0 * (z > 0)),
        "abs": (abs, np.sign),
        "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
        "silu": (lambda z: z * expit(z), lambda z: expit(z) * (1 + z * (1 - expit(z)))),
        "gelu": (lambda z: z * normal(z), lambda z: normal(z) + z * density(z)),
    }
    return pairs[activation]


@pytest.mark.parametrize("activation", ACTIVATION_TITLES)
def test_moments_are_the_integrals(activation: str) -> None:
    from scipy.integrate import quad

    phi, slope = closed_form(activation)
    z = np.linspace(-6, 6, 41)
    np.testing.assert_allclose(value_and_slope(activation, z), (phi(z), slope(z)), rtol=1e-13, atol=1e-13)

    def mean(function: Any) -> float:
        density = (2 * np.pi) ** -0.5
        return sum(
            float(quad(lambda z: function(z) * np.exp(-(z**2) / 2) * density, *side, epsabs=1e-12)[0])
            for side in ((-12, 0), (0, 12))
        )

    found = moments(activation)
    want = (mean(phi), mean(lambda z: phi(z) ** 2), mean(lambda z: slope(z) ** 2))
    np.testing.assert_allclose((found.mean, found.square, found.slope_square), want, rtol=1e-5, atol=1e-12)


def test_the_moments_are_those_quoted() -> None:
    assert [round(moments(name).cosine, 3) for name in ("relu", "gelu", "silu", "tanh")] == [0.318, 0.187, 0.120, 0]
    assert [round(1 / moments(name).slope_square, 2) for name in ("relu", "gelu", "silu", "abs")] == [2, 2.19, 2.64, 1]


def test_nodes_are_a_mean_over_a_normal() -> None:
    z, weights = normal_nodes(400)
    assert 0 not in z
    for power, want in enumerate((1, 0, 1, 0, 3, 0, 15)):
        np.testing.assert_allclose(weights @ z**power, want, atol=1e-10)


@pytest.mark.parametrize(("activation", "matrices"), [("relu", 2), ("gelu", 1), ("tanh", 2)])
def test_a_cell_is_what_its_definition_says(activation: str, matrices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta, width = 0.7, 1.3, 12
    drawn: list[dg.GeneratedWeights] = []

    def kept(*arguments: Any, **options: Any) -> dg.GeneratedWeights:
        drawn.append(dg.GeneratedWeights(*arguments[:3], seed=arguments[3], dtype=np.float32))
        return drawn[-1]

    monkeypatch.setattr(stream, "generated", kept)
    found = stream.growth(activation, matrices, alpha, beta, width, DEPTHS, 3)
    weights = drawn[0].materialize()
    seed = drawn[0].seed
    assert isinstance(seed, int)
    h = dg.normal(seed, (stream.INPUTS, width), dtype=np.float32).astype(np.float64)
    h /= np.sqrt(np.mean(h**2, axis=1, keepdims=True))
    phi, _ = closed_form(activation)
    squares, branches = [np.mean(h**2)], []
    for layer in range(max(DEPTHS)):
        branch = phi(alpha * h / np.sqrt(np.mean(h**2, axis=1, keepdims=True) + 1e-6) @ weights.up[layer])
        if matrices == 2:
            assert weights.down is not None
            branch = alpha * branch @ weights.down[layer]
        branches.append(np.mean(branch**2))
        h = h + beta * branch
        squares.append(np.mean(h**2))
    np.testing.assert_allclose(squares[0], 1)
    np.testing.assert_allclose(found["square"][1], np.array(squares)[list(DEPTHS)], rtol=1e-4)
    steps = (beta * alpha**matrices) ** 2 * np.arange(max(DEPTHS) + 1)
    np.testing.assert_allclose(found["kappa"], np.polyfit(steps, squares, 1)[0], rtol=1e-4)
    np.testing.assert_allclose(found["branch"], np.mean(branches) / alpha ** (2 * matrices), rtol=1e-4)
    z, mean = normal_nodes(2000)
    square = mean @ phi(z) ** 2
    left = (squares[-1] - 1 - square * steps[-1]) / (steps[-1] * (max(DEPTHS) - 1))
    np.testing.assert_allclose(found["spike"], left, rtol=1e-3, atol=1e-5)


def test_branches_have_the_mean_square_of_theory() -> None:
    for activation in ACTIVATION_TITLES:
        means = [stream.growth(activation, 2, 1.0, 1.0, 128, (32,), seed)["branch"] for seed in range(4)]
        np.testing.assert_allclose(np.mean(means), moments(activation).square, rtol=0.03, err_msg=activation)


def test_one_matrix_and_a_relu_add_a_square_of_depth() -> None:
    found = [stream.growth("relu", 1, 1.0, 1.0, 128, (64,), seed)["spike"] for seed in range(4)]
    np.testing.assert_allclose(np.mean(found), 1 / (2 * np.pi), rtol=0.06)
    none = [stream.growth("tanh", 1, 1.0, 1.0, 128, (64,), seed)["spike"] for seed in range(4)]
    assert abs(np.mean(none)) < 0.005
    assert np.isnan(stream.growth("relu", 1, 1.0, 1.0, 8, (1,), 0)["spike"])


def test_settings_have_weights_of_their_own() -> None:
    # With a ReLU, equal strengths on one set of weights would give one result.
    cells = [stream.growth("relu", 2, alpha, beta, 16, DEPTHS, 0) for alpha, beta in ((1.0, 1.0), (2.0, 0.25))]
    assert abs(cells[0]["kappa"] - cells[1]["kappa"]) > 1e-3
    again = stream.growth("relu", 2, 1.0, 1.0, 16, DEPTHS, 0)
    assert again["kappa"] == cells[0]["kappa"]


def test_the_study_agrees_with_theory() -> None:
    result = run_study(STUDIES["stream"], quick=True, seeds=6, width=96)
    theory = [finding for finding in result.findings if finding.expected and finding.expected.source == "theory"]
    assert len(theory) > 10
    for finding in theory:
        assert finding.expected is not None
        assert finding.measured.mean == pytest.approx(float(finding.expected.text), rel=0.2), finding.name
    rows = stream._table(result.results)
    assert len({tuple(row) for row in rows}) == len(rows) == 11
    assert all(len(row) == 1 + len(result.depths) for row in rows)
