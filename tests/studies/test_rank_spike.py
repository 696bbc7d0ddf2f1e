"""The study spike: cells against NumPy from the definition, and against theory in its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from problems import effective_rank

import depthgauge as dg
from depthgauge.studies.rank import STUDIES, run_study, spike
from depthgauge.studies.rank.gaussian import moments
from depthgauge.studies.rank.networks import inputs

for package in ("xarray", "scipy"):
    pytest.importorskip(package)

Floats = npt.NDArray[np.float64]
DEPTHS = (2, 3, 7)


def normed(h: Floats, norm: str) -> Floats:
    if norm == "layer":
        h = h - h.mean(axis=1, keepdims=True)
    found: Floats = h / np.sqrt(np.mean(h**2, axis=1, keepdims=True) + 1e-6)
    return found


def states_and_branches(of: spike.Case, width: int, depth: int, seed: int) -> tuple[list[Floats], list[Floats]]:
    block = dg.Block(branch="linear" if of.matrices == 1 else "mlp")
    weights = dg.GeneratedWeights(block, depth, width, seed=seed, dtype=np.float32).materialize()
    states, branches = [inputs(seed, of.inputs, width).astype(np.float64)], []
    for layer in range(depth):
        u = normed(states[-1], of.norm) if of.placement == "pre" else states[-1]
        branch = np.maximum(u @ weights.up[layer], 0)
        if weights.down is not None:
            branch = branch @ weights.down[layer]
        branches.append(normed(branch, of.norm) if of.placement == "output" else branch)
        states.append(states[-1] + branches[-1])
    return states, branches


def rank_of(a: Floats) -> float:
    return effective_rank(np.linalg.svd(a, compute_uv=False))


@pytest.mark.parametrize("case", spike.CASES)
def test_a_representation_is_what_its_definition_says(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = replace(spike.CASES[case], inputs=60)
    monkeypatch.setitem(spike.CASES, case, of)
    monkeypatch.setattr(spike, "SOME", 20)
    found = spike.representation(case, 12, DEPTHS, 4)
    states, _ = states_and_branches(of, 12, 7, 4)
    norms = np.array([np.linalg.norm(h.mean(axis=0)) for h in states])
    np.testing.assert_allclose(found["mean"][1], norms[list(DEPTHS)], rtol=1e-4)
    np.testing.assert_allclose(found["rank"][1], [rank_of(states[at]) / 12 for at in DEPTHS], rtol=1e-4)
    assert found["growth"] == pytest.approx(np.polyfit(np.log(DEPTHS), np.log(norms[list(DEPTHS)]), 1)[0], abs=1e-4)
    assert found["layers_growth"] == pytest.approx(np.polyfit(np.log(range(1, 8)), np.log(norms[1:]), 1)[0], abs=1e-4)
    assert found["some_rank"] == pytest.approx(rank_of(states[-1][:20]) / 12, rel=1e-4)


def test_branch_means_are_those_of_the_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spike, "BRANCH_INPUTS", 40)
    found = spike.branches("relu", 12, (1, 2, 4, 6), 3)
    _, outputs = states_and_branches(replace(spike.CASES["rms"], inputs=40), 12, 12, 3)
    means = [branch.mean(axis=0) for branch in outputs]

    def cosine(a: int, b: int) -> float:
        return float(means[a] @ means[b] / np.linalg.norm(means[a]) / np.linalg.norm(means[b]))

    later = [np.mean([cosine(layer - 1, other) for other in range(layer, 12)]) for layer in (1, 2, 4, 6)]
    np.testing.assert_allclose(found["cosine"][1], later, atol=1e-4)
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 12)]
    assert found["all_pairs"] == pytest.approx(np.mean([cosine(*pair) for pair in pairs]), abs=1e-4)
    means = [branch[0] for branch in outputs]
    assert found["one_input"] == pytest.approx(np.mean([cosine(*pair) for pair in pairs]), abs=1e-4)


@pytest.mark.parametrize("activation", spike.ACTIVATIONS)
def test_branches_have_the_cosine_of_theory(activation: str) -> None:
    cells = [spike.branches(activation, 128, (1, 32), seed) for seed in range(3)]
    expected = moments(activation).cosine
    assert np.mean([cell["one_input"] for cell in cells]) == pytest.approx(expected, abs=0.02)
    assert np.mean([cell["cosine"][1][1] for cell in cells]) == pytest.approx(expected, abs=0.06)
    first = np.mean([cell["cosine"][1][0] for cell in cells])
    # While inputs differ, the mean of a branch is the shared direction alone: the square root of the cosine.
    assert first == pytest.approx(expected**0.5, abs=0.08)


def test_the_mean_grows_by_itself_only_where_branches_share_a_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    for case, of in list(spike.CASES.items()):
        monkeypatch.setitem(spike.CASES, case, replace(of, inputs=256))
    growth: dict[str, Any] = {}
    rank: dict[str, Any] = {}
    for case in spike.CASES:
        cells = [spike.representation(case, 64, (4, 8, 16, 32, 64), seed) for seed in range(3)]
        growth[case] = np.mean([cell["growth"] for cell in cells])
        rank[case] = np.mean([cell["rank"][1][-1] for cell in cells])
    for case in ("rms", "layer", "output_rms"):
        assert growth[case] == pytest.approx(1, abs=0.05)
    for case in ("two", "output_layer"):
        assert 0.45 < growth[case] < 0.75
    assert max(rank["rms"], rank["output_rms"]) < 0.15 < rank["layer"] < 0.35 < rank["two"] < rank["output_layer"]


def test_published_ranks_are_of_published_depths_alone() -> None:
    result = run_study(STUDIES["spike"], seeds=2, depths=[1, 2], width=8)
    named = {finding.name: finding for finding in result.findings}
    assert len(named) == len(result.findings)
    ranks = [finding for name, finding in named.items() if "rank of the representation" in name]
    assert len(ranks) == len(spike.CASES) + len(spike.PUBLISHED_RANK)
    assert all(finding.expected is None for finding in ranks)
    assert {len(row) for row in spike._table(result.results)} == {4}
