"""The study of path orders: what its cells measure, from the definitions, and the theory it is held against."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from relu_branches import dense_branches

from depthgauge.studies.rank import paths
from depthgauge.studies.rank.networks import generated, inputs, network


def branches(strength: float, depth: int, width: int, seed: int) -> np.ndarray:
    weights = generated(network("pre"), depth, width, seed).materialize()
    return dense_branches(weights, strength, inputs(seed, 1, width))


def test_orders_are_sums_over_choices_of_branches() -> None:
    width, depths, seed = 12, (3, 5), 4
    found = paths.orders(0.8, width, (1, 2, 4), depths, seed)
    for row, depth in enumerate(depths):
        jacobians = branches(0.8, depth, width, seed)
        squares = np.sum(jacobians**2, axis=(1, 2)) / width
        for column, order in enumerate((1, 2, 4)):
            at = {name: values[row, column] for name, (_, values) in found.items()}
            if order > depth:
                assert math.isnan(at["over_predicted"])
                assert math.isnan(at["over_poisson"])
                continue
            total, elementary = np.zeros((width, width)), 0.0
            for chosen in itertools.combinations(range(depth), order):
                path = np.eye(width)
                for layer in chosen:
                    path = jacobians[layer] @ path
                total += path
                elementary += math.prod(squares[list(chosen)])
            norm = np.linalg.norm(total) / math.sqrt(width)
            assert at["over_predicted"] == pytest.approx(norm / math.sqrt(elementary), rel=1e-5)
            poisson = math.sqrt(squares.sum() ** order / math.factorial(order))
            assert at["over_poisson"] == pytest.approx(norm / poisson, rel=1e-5)
            assert at["over_poisson"] <= at["over_predicted"] * (1 + 1e-6)
            share = np.linalg.svd(total, compute_uv=False)
            share /= share.sum()
            share = share[share > 1e-12]
            assert at["rank"] == pytest.approx(math.exp(-np.sum(share * np.log(share))) / width, rel=1e-4)


def test_cosines_are_those_of_pairs_at_a_distance() -> None:
    width, depth, distances, seed = 12, 7, (1, 2, 4), 5
    found = paths.cosines(0.8, depth, width, distances, seed)
    flat = branches(0.8, depth, width, seed).reshape(depth, -1)
    cosines = {
        (i, j): width * flat[i] @ flat[j] / math.sqrt(flat[i] @ flat[i] * (flat[j] @ flat[j]))
        for i, j in itertools.combinations(range(depth), 2)
    }
    for place, distance in enumerate(distances):
        apart = np.array([cosine for (i, j), cosine in cosines.items() if j - i == distance])
        assert found["mean"][1][place] == pytest.approx(apart.mean(), abs=1e-4)
        assert found["rms"][1][place] == pytest.approx(math.sqrt(np.mean(apart**2)), abs=1e-4)
    assert found["mean_of_all"] == pytest.approx(np.mean(list(cosines.values())), abs=1e-4)


def test_one_block_has_no_pairs() -> None:
    assert paths.cosines(1.0, 1, 8, (), 0)["mean_of_all"] == pytest.approx(0, abs=1e-5)


def test_branches_are_as_good_as_independent_gaussian_matrices() -> None:
    found = [paths.cosines(1.0, 64, 64, (1, 2, 4, 8), seed) for seed in range(4)]
    assert np.mean([cosines["rms"][1] for cosines in found]) == pytest.approx(1, abs=0.1)
    assert np.mean([cosines["mean_of_all"] for cosines in found]) == pytest.approx(0, abs=0.1)


def test_the_first_order_has_the_rank_of_a_gaussian_matrix() -> None:
    integrate = pytest.importorskip("scipy.integrate")

    def density(s: float) -> float:
        return math.sqrt(4 - s**2) / math.pi  # the quarter circle law

    mean, _ = integrate.quad(lambda s: s * density(s), 0, 2)
    entropy, _ = integrate.quad(lambda s: -s / mean * math.log(s / mean) * density(s), 0, 2)
    # p = s / (d * mean), so that the entropy is ln d plus this.
    assert math.exp(entropy) == pytest.approx(0.805, abs=5e-4)
    found = [paths.orders(0.1, 96, (1,), (64,), seed)["rank"][1][0, 0] for seed in range(3)]
    assert np.mean(found) == pytest.approx(math.exp(entropy), abs=0.01)
