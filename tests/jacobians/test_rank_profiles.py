"""The spread of Jacobians by depth: against the matrices, against exact products, and grids against profiles."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from problems import Array, Problem, assert_close, assert_same_bits, empty_problems, random_problem

import depthgauge as dg
from depthgauge.equation import BRANCHES
from depthgauge.jacobians import rank_profiles

MEASURES = ("effective_rank", "effective_rank_of_squares", "stable_rank", "participation_ratio", "log_max")


def assert_same_spread(got: dg.Spread, want: dg.Spread) -> None:
    found = got.to_dict()
    for name in (*MEASURES, "condition", "log_spread", "singular_values", "log_singular_values", "converged"):
        assert_same_bits(found[name], want.to_dict()[name], name)


def deep(dtype: npt.DTypeLike = np.float64, depth: int = 60, batch: int = 3) -> Problem:
    """Return a residual stack whose Jacobian spreads past the precision of float32, and of float64."""
    block = dg.Block(activation="gelu", skip_scale=0.7, weight_scale=1.5)
    return random_problem(np.random.default_rng(7), block, depth, 6, 9, batch, dtype)


def block_jacobians(p: Problem, backend: str) -> Array:
    """Return the Jacobian of each block at the state that enters it, (L, B, d, d)."""
    states = dg.forward(p.block, p.weights, p.x, backend=backend).states[:-1]
    block = p.block.replace(skip_scale=p.block.skip_scale, branch_scale=p.block.branch_scale)
    return dg.jacobian(block, p.weights.as_replicates(), states, backend=backend)


@pytest.mark.parametrize("method", ["auto", "direct", "graded"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_it_is_the_spread_of_the_jacobians(
    rng: np.random.Generator, branch: str, method: Any, backend: str, dtype: np.dtype[Any]
) -> None:
    block = dg.Block(branch=branch, activation="relu", post_norm="layer_detached", branch_scale=[0.5, 0.0, -0.3, 0.2])
    p = random_problem(rng, block, 4, 7, 9, 3, dtype, replicates=(2,))
    depths = [4, 0, 2, 4]
    want = dg.spread(dg.jacobian(block, p.weights, p.x, depths=depths, backend=backend), backend=backend)
    found = dg.rank_profile(block, p.weights, p.x, depths=depths, method=method, backend=backend)
    assert isinstance(found, dg.Spread)
    assert found.shape == (2, 4, 3)
    assert found.singular_values.dtype == dtype
    assert np.array_equal(found.depths, depths)
    assert found.method.shape == (2, 4, 3)
    eps = float(np.finfo(dtype).eps)
    for name in MEASURES:
        assert_close(getattr(found, name), getattr(want, name), 100 * eps, what=name)
    assert_close(found.singular_values, want.singular_values, 30 * eps)


def test_by_default_every_depth(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 5, 4, 7, 2)
    found = dg.rank_profile(p.block, p.weights, p.x, backend=backend)
    assert np.array_equal(found.depths, np.arange(6))
    assert found.shape == (6, 2)
    np.testing.assert_allclose(found.effective_rank[0], 4, rtol=1e-15)
    assert np.all(found.effective_rank[1:] < 4)


def test_graded_values_are_those_of_the_exact_product(backend: str) -> None:
    from exact_products import exact_log_singular_values

    p = deep()
    found = dg.rank_profile(p.block, p.weights, p.x, depths=[7, 60], method="graded", backend=backend)
    jacobians = block_jacobians(p, backend)
    assert np.all(found.log_spread[1] > 37)  # a product in float64 says nothing of the last ones
    for example in range(3):
        for place, depth in enumerate((7, 60)):
            want = exact_log_singular_values(list(jacobians[:depth, example]), spread=60.0)
            np.testing.assert_allclose(found.log_singular_values[place, example], want, atol=1e-10)


@pytest.mark.parametrize("branch", BRANCHES)
def test_ranks_that_a_plain_stack_loses_are_lost_exactly(branch: str, backend: str) -> None:
    block = dg.Block(branch=branch, pre_norm="none", skip_scale=0.0)
    p = random_problem(np.random.default_rng(3), block, 3, 9, 12, 4, vectors=False)
    found = dg.rank_profile(block, p.weights, p.x, method="graded", backend=backend)
    states = dg.forward(block, p.weights, p.x, backend=backend).states
    for example in range(4):
        bound = 9
        for layer in range(3):
            z = states[layer, example] @ (p.weights.up if p.weights.gate is None else p.weights.gate)[layer]
            bound = min(bound, int(np.sum(z > 0)))
            ranks = np.sum(found.log_singular_values[layer + 1, example] > -np.inf)
            assert ranks == bound, (branch, layer)


def test_the_plain_stack_is_the_exact_product_of_its_live_units(backend: str) -> None:
    from exact_products import exact_log_singular_values

    block = dg.Block(pre_norm="none", skip_scale=0.0)
    p = random_problem(np.random.default_rng(5), block, 12, 6, 14, 2, vectors=False)
    states = dg.forward(block, p.weights, p.x, backend=backend).states
    found = dg.rank_profile(block, p.weights, p.x, depths=[12], method="graded", backend=backend)
    assert p.weights.down is not None
    for example in range(2):
        factors: list[Array] = []
        for up, down, h in zip(p.weights.up, p.weights.down, states[:-1, example], strict=True):
            live = h @ up > 0
            factors += [up[:, live].T, down[live].T]
        want = exact_log_singular_values(factors, spread=40.0)
        got = found.log_singular_values[0, example]
        assert np.array_equal(np.isinf(got), np.isinf(want))
        np.testing.assert_allclose(got[np.isfinite(got)], want[np.isfinite(want)], atol=1e-10)


def test_auto_is_direct_until_an_example_is_past_what_the_dtype_resolves(backend: str, dtype: np.dtype[Any]) -> None:
    p = deep(dtype)
    x = p.x.copy()
    x[1] = np.nan
    auto, direct, graded = (
        dg.rank_profile(p.block, p.weights, x, method=method, backend=backend)
        for method in ("auto", "direct", "graded")
    )
    assert set(np.unique(direct.method)) == {"direct"}
    assert set(np.unique(graded.method)) == {"graded"}
    assert set(auto.method[:, 1]) == {"direct"}
    assert np.all(np.isnan(auto.effective_rank[1:, 1]))
    for example in (0, 2):
        past = direct.singular_values[:, example, -1] / direct.singular_values[:, example, 0]
        first = int(np.argmax(past < 4 * 6 * np.finfo(dtype).eps))
        assert 2 < first < 60
        assert np.array_equal(auto.method[:, example], np.where(np.arange(61) < first, "direct", "graded"))
        for name in (*MEASURES, "singular_values", "log_singular_values"):
            got, before, after = (getattr(profile, name)[:, example] for profile in (auto, direct, graded))
            assert_same_bits(got[:first], before[:first], name)
            # The graded products are of fewer examples, which to NumPy's products makes a difference.
            assert_close(got[first:], after[first:], 1e-12 if dtype == np.float64 else 1e-4, what=name)
    # Where the product says less than the truth, it says too little.
    assert np.all(auto.log_spread[-1, [0, 2]] > direct.log_spread[-1, [0, 2]])


def test_the_old_word_for_direct_is_read(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 3, 5, 7, 2)
    old: Any = "naive"
    found = dg.rank_profile(p.block, p.weights, p.x, method=old, backend=backend)
    assert np.all(found.method == "direct")
    assert_same_spread(found, dg.rank_profile(p.block, p.weights, p.x, method="direct", backend=backend))


def test_auto_stays_direct_where_that_suffices(
    rng: np.random.Generator, backend: str, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = random_problem(rng, dg.Block(branch_scale=0.1), 6, 8, 9, 3, dtype)
    want = dg.rank_profile(p.block, p.weights, p.x, method="direct", backend=backend)
    monkeypatch.setattr(rank_profiles, "_fill_graded", lambda *_: pytest.fail("graded products were made"))
    found = dg.rank_profile(p.block, p.weights, p.x, backend=backend)
    assert np.all(found.method == "direct")
    assert_same_spread(found, want)


def test_zero_jacobians_are_known(backend: str) -> None:
    block = dg.Block(pre_norm="none", skip_scale=0.0)
    weights = dg.Weights(np.ones((2, 3, 4)), np.ones((2, 4, 3)))
    for method in ("auto", "direct", "graded"):
        found = dg.rank_profile(block, weights, -np.ones((1, 3)), method=method, backend=backend)
        assert np.all(found.effective_rank[1:] == 0)
        assert np.all(found.log_max[1:] == -np.inf)
        assert np.all(found.converged)


@pytest.mark.parametrize("method", ["direct", "graded"])
def test_values_stay_in_range_at_any_depth(method: Any, backend: str, dtype: np.dtype[Any]) -> None:
    depth, width, depths = 150, 4, [0, 1, 40, 150]
    block = dg.Block(branch="linear", activation="identity", pre_norm="none", skip_scale=0.0)
    for factor in (200.0, 0.005):
        weights = dg.Weights(np.broadcast_to(np.diag([1.0, 1.0, 0.99, 0.98]), (depth, width, width)).astype(dtype))
        found = dg.rank_profile(
            block.replace(weight_scale=factor),
            weights,
            np.zeros((1, 4), dtype),
            depths=depths,
            method=method,
            backend=backend,
        )
        scale = np.log(float(dtype.type(factor)))
        want = np.array(depths) * (scale + np.log(np.diag(np.float64(weights.up[0])))[:, None])
        np.testing.assert_allclose(found.log_singular_values[:, 0], want.T, rtol=1e-15, atol=300 * np.finfo(dtype).eps)
        assert np.all(found.singular_values[-1] == (np.inf if factor > 1 else 0))
        np.testing.assert_allclose(found.stable_rank[0], 4)


def grid_blocks(branch: str) -> list[dg.Block]:
    return [
        dg.Block(branch=branch, weight_scale=0.5),
        dg.Block(branch=branch, pre_norm="none", post_norm="layer", activation="gelu"),
        dg.Block(branch=branch, branch_scale=[0.1, 0.0, 0.3, 0.4], output_norm="dyt"),
        dg.Block(branch=branch, skip_scale=0.0, activation="tanh"),
    ]


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_grid_is_a_profile_of_each_block(
    rng: np.random.Generator, branch: str, backend: str, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = grid_blocks(branch)
    p = random_problem(rng, blocks[0], 4, 9, 12, 5, dtype, replicates=(2,))
    depths = [4, 1, 0, 4]
    grid = dg.rank_grid(blocks, p.weights, p.x, depths=depths, backend=backend)
    assert grid.shape == (4, 2, 4, 5)
    assert grid.blocks == tuple(blocks)
    assert np.array_equal(grid.depths, depths)
    for index, block in enumerate(blocks):
        alone = dg.rank_profile(block, p.weights, p.x, depths=depths, method="direct", backend=backend)
        for name in MEASURES:
            assert_same_bits(getattr(grid, name)[index], getattr(alone, name), name)
        assert_same_bits(grid.singular_values[index], alone.singular_values)
    for memory in (1, 3 * 2 * 5 * 81 * dtype.itemsize):
        monkeypatch.setattr(rank_profiles, "_MEMORY", memory)
        assert_same_spread(dg.rank_grid(blocks, p.weights, p.x, depths=depths, backend=backend), grid)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_grid_has_the_bits_of_profiles_alone(
    threads: int, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers too large to be passed many at a time, several groups of examples, and fewer tasks than threads."""
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    for batch, width, hidden, members in ((1, 150, 1100, 3), (17, 20, 37, 2), (1, 24, 24, 1)):
        block = dg.Block(activation="gelu")
        p = random_problem(np.random.default_rng(3), block, 5, width, hidden, batch, dtype)
        blocks = [block.replace(weight_scale=1.0 + 0.5 * k) for k in range(members)]
        grid = dg.rank_grid(blocks, p.weights, p.x, depths=[3, 5], backend="native", threads=threads)
        for index, member in enumerate(blocks):
            alone = dg.rank_profile(member, p.weights, p.x, depths=[3, 5], method="direct", backend="native", threads=1)
            assert_same_bits(grid.singular_values[index], alone.singular_values)


def test_examples_that_are_lost_leave_the_rest_of_a_grid_alone(backend: str, dtype: np.dtype[Any]) -> None:
    blocks = grid_blocks("gated")
    p = random_problem(np.random.default_rng(4), blocks[0], 4, 9, 12, 5, dtype)
    clean = dg.rank_grid(blocks, p.weights, p.x, backend=backend)
    x = p.x.copy()
    x[2, 3] = np.nan
    found = dg.rank_grid(blocks, p.weights, x, backend=backend)
    others = [0, 1, 3, 4]
    assert_same_bits(found.singular_values[..., others, :], clean.singular_values[..., others, :])
    assert np.all(np.isnan(found.singular_values[:, 1:, 2]))


def test_bits_depend_on_neither_threads_nor_batch(monkeypatch: pytest.MonkeyPatch, dtype: np.dtype[Any]) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "5")
    p = deep(dtype, depth=24, batch=19)
    for method in ("auto", "direct", "graded"):
        want = dg.rank_profile(p.block, p.weights, p.x, method=method, backend="native", threads=1)
        for threads in (2, 5):
            found = dg.rank_profile(
                p.block,
                p.weights,
                p.x,
                method=method,
                backend="native",
                threads=threads,
            )
            assert_same_spread(found, want)
        for example in (0, 7, 18):
            found = dg.rank_profile(p.block, p.weights, p.x[[example]], method=method, backend="native")
            assert_same_bits(found.log_singular_values, want.log_singular_values[:, [example]])
            assert np.array_equal(found.method, want.method[:, [example]])


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("width", [1, 7, 8, 9, 17, 33])
def test_native_matches_the_reference(rng: np.random.Generator, branch: str, width: int, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch=branch, skip_scale=[1.0, 0.0], pre_norm="layer")
    eps = float(np.finfo(dtype).eps)
    for hidden, batch in [(0, 2), (1, 3), (5, 9), (33, 2), (64, 5)]:
        p = random_problem(rng, block, 2, width, hidden, batch, dtype)
        got, want = (
            dg.rank_profile(block, p.weights, p.x, method="direct", backend=name) for name in ("native", "reference")
        )
        assert_close(got.singular_values, want.singular_values, 300 * eps, what=f"{hidden}, {batch}")
    for hidden in (0, 1, 5, 33):
        p = random_problem(rng, block, 2, width, hidden, 1, dtype)
        got, want = (
            dg.rank_profile(block, p.weights, p.x, method="graded", depths=[2], backend=name)
            for name in ("native", "reference")
        )
        assert_close(got.singular_values, want.singular_values, 300 * eps, what=f"graded, {hidden}")
        assert np.array_equal(np.isinf(got.log_singular_values), np.isinf(want.log_singular_values)), hidden


@pytest.mark.parametrize("branch", BRANCHES)
def test_empty_axes(branch: str, backend: str) -> None:
    for skip in (1.0, 0.0):
        block = dg.Block(branch=branch, skip_scale=skip)
        for p in empty_problems(block):
            depth, (*replicates, batch, _) = p.weights.depth, p.x.shape
            for depths in (None, [depth], []):
                shape = (*replicates, depth + 1 if depths is None else len(depths), batch)
                for method in ("auto", "direct", "graded"):
                    found = dg.rank_profile(block, p.weights, p.x, depths=depths, method=method, backend=backend)
                    assert found.shape == found.method.shape == shape
                    assert repr(found).startswith("RankProfile(shape=")
                assert dg.rank_grid([block], p.weights, p.x, depths=depths, backend=backend).shape == (1, *shape)


def test_results_are_plain_data(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 2, 4, 7, 2)
    profile = dg.rank_profile(p.block, p.weights, p.x, backend=backend)
    grid = dg.rank_grid([p.block], p.weights, p.x, backend=backend)
    for result in (profile, grid):
        again = pickle.loads(pickle.dumps(result))
        assert repr(again) == repr(result)
        assert "\n" not in repr(result)
        for name, array in result.to_dict().items():
            if isinstance(array, np.ndarray):
                assert array.flags.owndata, name
                assert array.flags.writeable, name
                assert array.flags.c_contiguous, name
    assert grid.to_dict()["blocks"] == [p.block.to_dict()]
    assert profile.to_dict()["method"].dtype.kind == "U"


def test_arguments_are_checked() -> None:
    block = dg.Block()
    weights, x = dg.initialize(block, 2, 4, rng=0), np.zeros((2, 4))
    with pytest.raises(ValueError, match="method='greedy' is unknown"):
        dg.rank_profile(block, weights, x, method="greedy", backend="reference")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"depths\[0\]=3 must be at most 2"):
        dg.rank_profile(block, weights, x, depths=[3], backend="reference")
    with pytest.raises(ValueError, match="blocks is empty"):
        dg.rank_grid([], weights, x, backend="reference")
    with pytest.raises(TypeError, match="blocks must be a sequence of Block; got Block"):
        dg.rank_grid(block, weights, x, backend="reference")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"blocks\[1\] must be a Block; got str"):
        dg.rank_grid([block, "relu"], weights, x, backend="reference")  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"blocks\[1\] has branch='gated', but blocks\[0\] has 'mlp'"):
        dg.rank_grid([block, dg.Block(branch="gated")], weights, x, backend="reference")
    with pytest.raises(ValueError, match=r"blocks\[1\]: skip_scale has 3 values, but the weights have 2 layers"):
        dg.rank_grid([block, dg.Block(skip_scale=[1, 1, 1])], weights, x, backend="reference")
    with pytest.raises(ValueError, match="needs weights with gate"):
        dg.rank_grid([dg.Block(branch="gated")], weights, x, backend="reference")


@pytest.mark.parametrize("generated", [False, True])
def test_a_grid_holds_the_states_of_one_block_at_a_time(generated: bool) -> None:
    block, depth, batch, width = dg.Block(), 300, 4, 8
    weights: Any = dg.GeneratedWeights(block, depth, width, seed=0)
    if not generated:
        weights = weights.materialize()
    blocks = [block.replace(branch_scale=0.01 * k) for k in range(40)]
    x = dg.normal(0, (batch, width))
    peaks = []
    for some in (blocks[:1], blocks):
        tracemalloc.start()
        dg.rank_grid(some, weights, x, depths=[1, depth], backend="native")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 10 * depth * batch * width * 8  # one of the 40 has 2 to 4 arrays of that size


def test_the_first_block_is_named_like_all_others(backend: str) -> None:
    good = dg.Block()
    bad = good.replace(branch_scale=(1.0,) * 4)
    weights = dg.initialize(good, 5, 8, 12, rng=0)
    for place, blocks in enumerate(([bad, good], [good, bad])):
        with pytest.raises(ValueError, match=rf"blocks\[{place}\]: branch_scale has 4 values"):
            dg.rank_grid(blocks, weights, np.ones((3, 8)), backend=backend)
