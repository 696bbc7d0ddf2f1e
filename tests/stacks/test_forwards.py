"""What a Forward keeps: states, statistics, its block and weights, and a tape for derivatives."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from problems import arrays_of, assert_same_bits, random_problem

import depthgauge as dg
from depthgauge.equation import BRANCHES

BLOCK = dg.Block(activation="gelu", post_norm="layer")


def test_table(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    fwd = dg.forward(p.block, p.weights, p.x, cosine=True, backend=backend)
    rows = fwd.table()
    assert [row["depth"] for row in rows] == [0, 1, 2, 3]
    assert fwd.cosine is not None
    for depth, row in enumerate(rows):
        assert row["rms"] == fwd.rms[depth]
        assert row["cosine"] == fwd.cosine[depth]
        assert isinstance(row["rms"], float)
        assert isinstance(row["nonfinite"], int)
        if depth:
            assert row["branch_rms"] == fwd.branch_rms[depth - 1]
    assert np.isnan(rows[0]["branch_rms"])
    many = random_problem(rng, BLOCK, replicates=(2,))
    assert dg.forward(many.block, many.weights, many.x, backend=backend).table()[1]["rms"].shape == (2,)


def test_keep_nothing_gives_the_same_statistics_and_no_derivatives(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    kept = dg.forward(p.block, p.weights, p.x, quantiles=[0.5], cosine=True, backend=backend)
    light = dg.forward(p.block, p.weights, p.x, keep="nothing", quantiles=[0.5], cosine=True, backend=backend)
    for name, array in arrays_of(kept).items():
        assert_same_bits(arrays_of(light)[name], array, name)
    with pytest.raises(ValueError, match="kept nothing, so its states"):
        light.states  # noqa: B018
    for call in (dg.vjp, dg.jvp):
        with pytest.raises(ValueError, match=r'kept nothing, so derivatives .*keep="states"'):
            call(p.block, p.weights, light, p.vector)


def test_optional_statistics_are_absent_by_default(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    bwd = dg.vjp(p.block, p.weights, fwd, p.vector)
    assert fwd.state_quantiles is fwd.derivative_quantiles is fwd.cosine is None
    for name in ("weights", "weight_rms", "branch_scale", "skip_scale", "gradient_quantiles"):
        assert getattr(bwd, name) is None


def test_writing_to_results_does_not_reach_the_tape(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    want = dg.vjp(p.block, p.weights, fwd, p.vector).input_gradient
    fwd.states[...] = np.nan
    fwd.output[...] = np.nan
    assert_same_bits(dg.vjp(p.block, p.weights, fwd, p.vector).input_gradient, want)


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_pickled_forward_has_the_same_derivatives(rng: np.random.Generator, branch: str, backend: str) -> None:
    p = random_problem(rng, dg.Block(branch=branch, post_norm="layer"))
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    want = dg.vjp(p.block, p.weights, fwd, p.vector, weight_grads=True)
    again = pickle.loads(pickle.dumps(fwd))
    assert_same_bits(again.states, fwd.states)
    pulled = dg.vjp(again.block, again.weights, again, p.vector, weight_grads=True)
    for name, array in arrays_of(want).items():
        assert_same_bits(arrays_of(pulled)[name], array, name)
    with pytest.raises(ValueError, match="other weights"):
        dg.vjp(p.block, p.weights, again, p.vector)


def test_a_pickled_forward_holds_weights_and_states_once(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK, 1, 64, 64, 8)
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    size = len(pickle.dumps(fwd))
    fwd.states  # noqa: B018
    dg.vjp(p.block, p.weights, fwd, p.vector)
    assert len(pickle.dumps(fwd)) == size
    assert size < 1.5 * sum(array.nbytes for _, array in p.weights.items())


def test_a_forward_belongs_to_its_block_and_weights(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    fwd = dg.forward(p.block, p.weights, p.x, backend=backend)
    fields: dict[str, Any] = dict(p.weights.items())
    twin = dg.Weights(**fields)
    for call in (dg.vjp, dg.jvp):
        with pytest.raises(ValueError, match="other weights"):
            call(p.block, twin, fwd, p.vector)
        with pytest.raises(ValueError, match="another block"):
            call(p.block.replace(branch_scale=2), p.weights, fwd, p.vector)
        other = "native" if backend == "reference" else "reference"
        with pytest.raises(ValueError, match=f"made by backend='{backend}'"):
            call(p.block, p.weights, fwd, p.vector, backend=other)
        call(p.block.replace(), p.weights, fwd, p.vector, backend=backend)


def test_an_update_of_weights_in_place_is_seen(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK)
    before = dg.forward(p.block, p.weights, p.x, backend=backend).output
    p.weights.up[...] *= 0.5
    after = dg.forward(p.block, p.weights, p.x, backend=backend)
    fields: dict[str, Any] = dict(p.weights.items())
    fresh = dg.Weights(**fields, copy=True)
    assert np.any(before != after.output)
    assert_same_bits(after.output, dg.forward(p.block, fresh, p.x, backend=backend).output)
    # Also between a forward and its derivatives, and after a round trip.
    copy = pickle.loads(pickle.dumps(after))
    for fwd in (after, copy):
        assert isinstance(fwd.weights, dg.Weights)
        assert fwd.weights.down is not None
        fwd.weights.down[...] = 0.0
        pulled = dg.vjp(p.block, fwd.weights, fwd, p.vector, weight_grads=True)
        assert pulled.weights is not None
        assert not np.any(pulled.weights.up)


def test_stacks_of_the_same_weights_do_not_mix(rng: np.random.Generator, backend: str) -> None:
    up, down = rng.standard_normal((2, 3, 4, 4))
    weights, x = dg.Weights(up, down), rng.standard_normal((2, 5, 4))
    blocks = [dg.Block(activation=name) for name in ("relu", "tanh")]
    calls = [(block, given) for block in blocks for given in (x, x[0], x[:, None], x[:, :2])]
    alone = [dg.forward(block, dg.Weights(up, down), given, backend=backend).output for block, given in calls]
    for index in rng.integers(0, len(calls), 40):
        block, given = calls[index]
        assert_same_bits(dg.forward(block, weights, given, backend=backend).output, alone[index])


def test_weights_are_gone_with_their_last_reference(rng: np.random.Generator, backend: str) -> None:
    block, x = dg.Block(), rng.standard_normal((3, 4))
    weights = dg.initialize(block, 2, 4, rng=rng)
    alive = weakref.ref(weights.up)
    fwd = dg.forward(block, weights, x, backend=backend)
    dg.vjp(block, weights, fwd, x)
    del weights, fwd
    gc.collect()
    assert alive() is None
