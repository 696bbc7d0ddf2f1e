"""Jacobians through weights that are made a segment at a time are those through the same weights, stored."""

from __future__ import annotations

import numpy as np
import pytest
from problems import assert_same_bits

import depthgauge as dg
from depthgauge.jacobians import rank_profiles
from depthgauge.stacks import segments

DEPTH = 23


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold 8 layers at once."""
    monkeypatch.setattr(segments, "_STRETCH_BYTES", 8 * 3 * 2 * 5 * 7 * 8)


def test_generated_weights_go_where_weights_go(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    block = dg.Block(branch_scale=list(np.linspace(0.1, 0.5, DEPTH)))
    generated = dg.GeneratedWeights(block, DEPTH, 5, 7, seed=[1, 2, 3])
    stored = generated.materialize(backend=backend)
    x = np.random.default_rng(0).standard_normal((4, 5))
    for depths in (None, [0, 3, 8, 23, 8], [8], [0], []):
        got, want = (dg.jacobian(block, w, x, depths=depths, backend=backend) for w in (generated, stored))
        assert_same_bits(got, want, f"{depths}")
    for (_, got), (_, want) in zip(
        *(dg.jacobian_prefixes(block, w, x, backend=backend) for w in (generated, stored)), strict=True
    ):
        assert_same_bits(got, want)
    profiles = [dg.rank_profile(block, w, x, method="graded", backend=backend) for w in (generated, stored)]
    assert_same_bits(profiles[0].log_singular_values, profiles[1].log_singular_values)
    paths = [dg.path_norms(block, w, x, DEPTH, backend=backend) for w in (generated, stored)]
    for name, array in paths[1].to_dict().items():
        assert_same_bits(paths[0].to_dict()[name], array, name)
    blocks = [block, block.replace(skip_scale=0.0, branch_scale=1.0)]
    for memory in (1 << 28, 1):
        monkeypatch.setattr(rank_profiles, "_MEMORY", memory)
        got, want = (dg.rank_grid(blocks, w, x, backend=backend).singular_values for w in (generated, stored))
        assert_same_bits(got, want)


def test_an_operator_makes_them_again(backend: str) -> None:
    block = dg.Block(activation="gelu")
    generated = dg.GeneratedWeights(block, DEPTH, 5, 7, seed=4)
    x = np.random.default_rng(1).standard_normal(5)
    got, want = (
        dg.jacobian_operator(block, w, x, backend=backend) for w in (generated, generated.materialize(backend=backend))
    )
    vectors = np.eye(5)
    assert_same_bits(got.matmat(vectors), want.matmat(vectors))
    assert_same_bits(got.rmatmat(vectors), want.rmatmat(vectors))
