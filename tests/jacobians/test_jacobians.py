"""Whole Jacobians: autograd, finite differences, products with vectors, scale laws, ranges and bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from every_block import PLACES, every_block, label
from problems import Array, assert_close, assert_same_bits, empty_problems, random_problem
from torch_equation import TorchEquation

import depthgauge as dg
from depthgauge.equation import BRANCHES

ALL = pytest.mark.parametrize("block", every_block(), ids=label)
SMOOTH = pytest.mark.parametrize(
    "block",
    [block for block in every_block() if not any("detached" in getattr(block, place) for place in PLACES)],
    ids=label,
)
# Blocks between them have every branch, an activation with exact zeros and one without, and a norm at every place.
SAMPLE_BLOCKS = pytest.mark.parametrize(
    "block",
    [
        dg.Block(branch=branch, activation=activation, pre_norm=pre, output_norm=output, post_norm=post, **scales)
        for (branch, activation), (pre, output, post), scales in zip(
            itertools.product(BRANCHES, ("relu", "gelu")),
            [("rms", "none", "none"), ("layer", "rms", "none"), ("none", "dyt", "layer")] * 2,
            [{}, {"skip_scale": 0.0}, {"branch_scale": 0.5}] * 2,
            strict=True,
        )
    ],
    ids=label,
)


@ALL
def test_autograd_agrees(rng: np.random.Generator, block: dg.Block) -> None:
    torch = pytest.importorskip("torch")
    p = random_problem(rng, block, 3, 6, 9, 3)
    stack = TorchEquation(torch, p)
    # Examples do not couple, so that the derivatives of a sum over them are each example's own.
    of_sum = torch.func.jacrev(lambda x: stack.output(x).sum(0))(torch.from_numpy(p.x))
    want = np.moveaxis(of_sum.detach().numpy(), 1, 0)
    for backend in dg.available_backends():  # in one test, for it is torch that takes the time
        assert_close(dg.jacobian(block, p.weights, p.x, backend=backend), want, 1e-12, what=backend)


@SMOOTH
def test_columns_are_slopes_of_finite_differences(rng: np.random.Generator, block: dg.Block, backend: str) -> None:
    p = random_problem(rng, block, 3, 5, 7, 3)
    step = 1e-6
    steps = step * np.eye(5)[:, None, :]
    ahead, behind = (dg.forward(block, p.weights, p.x + s * steps, backend=backend).output for s in (1, -1))
    want = np.moveaxis((ahead - behind) / (2 * step), 0, -1)
    assert_close(dg.jacobian(block, p.weights, p.x, backend=backend), want, 1e-6)


@ALL
def test_rows_are_vjps_and_columns_jvps_of_unit_vectors(
    rng: np.random.Generator, block: dg.Block, backend: str, dtype: np.dtype[Any]
) -> None:
    p = random_problem(rng, block, 3, 9, 7, 3, dtype)
    unit = np.broadcast_to(np.eye(9, dtype=dtype)[:, None, :], (9, 3, 9))
    jacobian = dg.jacobian(block, p.weights, p.x, backend=backend)
    rows = dg.vjp(block, p.weights, p.x, unit, backend=backend).input_gradient
    columns = dg.jvp(block, p.weights, p.x, unit, backend=backend).output
    assert_close(jacobian, np.moveaxis(rows, 0, 1), 100 * float(np.finfo(dtype).eps))
    assert_close(jacobian, np.moveaxis(columns, 0, 2), 100 * float(np.finfo(dtype).eps))


@SAMPLE_BLOCKS
@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 17, 33])
def test_native_matches_the_reference_at_sizes_beside_the_vector_width(
    rng: np.random.Generator, block: dg.Block, width: int, dtype: np.dtype[Any]
) -> None:
    for hidden, batch in [(0, 3), (1, 1), (5, 9), (33, 4), (64, 17)]:
        p = random_problem(rng, block, 2, width, hidden, batch, dtype)
        got, want = (dg.jacobian(block, p.weights, p.x, backend=name) for name in ("native", "reference"))
        assert_close(got, want, 200 * float(np.finfo(dtype).eps), what=f"{hidden} hidden units, {batch} examples")


@SAMPLE_BLOCKS
def test_depths_are_prefixes(rng: np.random.Generator, block: dg.Block, backend: str, dtype: np.dtype[Any]) -> None:
    block = block.replace(branch_scale=[0.5, 0.0, -1.0, 2.0], skip_scale=[1.0, 0.5, 0.0, -0.7])
    p = random_problem(rng, block, 4, 9, 7, 3, dtype, replicates=(2,))
    depths = [3, 0, 4, 1, 3, 2]
    found = dg.jacobian(block, p.weights, p.x, depths=depths, backend=backend)
    assert found.shape == (2, 6, 3, 9, 9)
    for place, depth in enumerate(depths):
        prefix = block.replace(branch_scale=block.branch_scale[:depth], skip_scale=block.skip_scale[:depth])  # type: ignore[index]
        fields: dict[str, Any] = {name: array[:, :depth] for name, array in p.weights.items()}
        assert_same_bits(
            found[:, place], dg.jacobian(prefix, dg.Weights(**fields), p.x, backend=backend), f"depth {depth}"
        )
    assert_same_bits(found[:, 1], np.broadcast_to(np.eye(9, dtype=dtype), (2, 3, 9, 9)))
    assert_same_bits(found[:, 2], dg.jacobian(block, p.weights, p.x, backend=backend))


@pytest.mark.parametrize("split", [False, True])
def test_prefixes_come_in_order_and_are_those_of_jacobian(rng: np.random.Generator, split: bool, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 4, 5, 7, 3, replicates=(2,))
    options: dict[str, Any] = {"return_log_scale": split, "backend": backend}
    want = dg.jacobian(p.block, p.weights, p.x, depths=range(5), **options)
    for depths in (None, [4, 1, 1, 0], [2], []):
        found = list(dg.jacobian_prefixes(p.block, p.weights, p.x, depths=depths, **options))
        assert [depth for depth, _ in found] == sorted(set(range(5) if depths is None else depths))
        for depth, value in found:
            for got, whole in zip(value, want, strict=True) if split else [(value, want)]:
                assert_same_bits(got, whole[:, depth])
                assert got.flags.owndata
                assert got.flags.writeable


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_prefixes_have_an_input_of_their_own(rng: np.random.Generator, passed: int, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 3, 5, 4, 2)
    whole, x = dg.jacobian(p.block, p.weights, p.x, backend=backend), p.x.copy()
    prefixes = dg.jacobian_prefixes(p.block, p.weights, x, backend=backend)
    for _ in range(passed):
        next(prefixes)
    x[...] = np.nan
    assert_same_bits(list(prefixes)[-1][1], whole)


def test_prefixes_keep_what_was_yielded(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(), 3, 5, 7, 2)
    prefixes = dg.jacobian_prefixes(p.block, p.weights, p.x, backend=backend)
    first = next(prefixes)[1]
    before = first.copy()
    list(prefixes)
    assert_same_bits(first, before)
    with pytest.raises(ValueError, match=r"depths\[1\]=4 must be at most 3"):
        dg.jacobian_prefixes(p.block, p.weights, p.x, depths=[0, 4], backend=backend)


@SAMPLE_BLOCKS
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_example_has_the_same_bits_alone(
    block: dg.Block, threads: int, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    p = random_problem(np.random.default_rng(1), block, 3, 19, 23, 11, dtype, replicates=(2,))
    found = dg.jacobian(block, p.weights, p.x, backend="native", threads=threads)
    for replicate, example in itertools.product(range(2), range(0, 11, 1 if threads == 1 else 4)):
        own = dg.Weights(**{name: array[replicate] for name, array in p.weights.items()})
        alone = dg.jacobian(block, own, p.x[replicate, [example]], backend="native", threads=1)
        assert_same_bits(found[replicate, example], alone[0], f"example {replicate}, {example}")


@SAMPLE_BLOCKS
def test_neighbours_that_are_not_finite_change_no_bit(block: dg.Block, dtype: np.dtype[Any]) -> None:
    p = random_problem(np.random.default_rng(2), block, 3, 19, 23, 19, dtype)
    clean = dg.jacobian(block, p.weights, p.x, backend="native")
    for value in (np.nan, np.inf, np.finfo(dtype).max):
        x = p.x.copy()
        x[[3, 17], 2] = value
        found = dg.jacobian(block, p.weights, x, backend="native")
        others = np.setdiff1d(np.arange(19), [3, 17])
        assert_same_bits(found[others], clean[others], str(value))


@SAMPLE_BLOCKS
def test_an_example_with_a_nan_has_no_derivatives(rng: np.random.Generator, block: dg.Block, backend: str) -> None:
    """Nor where every unit is dead and the skip path alone would go on: its rank is not full, but unknown."""
    p = random_problem(rng, block, 3, 9, 7, 3)
    x = p.x.copy()
    x[1, 4] = np.nan
    found = dg.jacobian(block, p.weights, x, depths=[0, 1, 3], backend=backend)
    assert np.array_equal(found[0], np.broadcast_to(np.eye(9), (3, 9, 9)))
    assert np.all(np.isnan(found[1:, 1]))
    assert np.all(np.isfinite(found[:, [0, 2]]))
    for method in ("direct", "graded"):
        profile = dg.rank_profile(block, p.weights, x, depths=[1, 3], method=method, backend=backend)
        assert np.all(np.isnan(profile.effective_rank[:, 1]))
        assert np.all(np.isfinite(profile.effective_rank[:, [0, 2]]))
    paths = dg.path_norms(block, p.weights, x, 2, backend=backend)
    assert np.all(np.isnan(paths.norms[:, 1]))
    assert np.all(np.isnan(paths.branch_squares[:, 1]))
    assert np.all(np.isfinite(paths.norms[:, [0, 2]]))


def test_any_layout_is_read(rng: np.random.Generator, backend: str, dtype: np.dtype[Any]) -> None:
    p = random_problem(rng, dg.Block(), 2, 9, 7, 6, dtype)
    want = dg.jacobian(p.block, p.weights, p.x, backend=backend)
    wide = np.zeros((12, 18), dtype)
    wide[::2, ::2] = p.x
    for x in (np.asfortranarray(p.x), wide[::2, ::2], p.x[::-1].copy()[::-1], p.x.astype(p.x.dtype.newbyteorder())):
        assert_same_bits(dg.jacobian(p.block, p.weights, x, backend=backend), want)
    repeated = dg.jacobian(p.block, p.weights, np.broadcast_to(p.x[0], (4, 9)), backend=backend)
    assert_close(repeated, np.broadcast_to(want[0], (4, 9, 9)), 10 * float(np.finfo(dtype).eps))


def test_replicates_broadcast(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(activation="gelu"), 2, 5, 7, 3, replicates=(2, 1))
    x = rng.standard_normal((4, 3, 5))
    found, logs = dg.jacobian(p.block, p.weights, x, depths=[2, 0], return_log_scale=True, backend=backend)
    assert found.shape == (2, 4, 2, 3, 5, 5)
    assert logs.shape == (2, 4, 2, 3)
    own = dg.Weights(**{name: array[1, 0] for name, array in p.weights.items()})
    alone = dg.jacobian(p.block, own, x[2], backend=backend)
    assert_close(found[1, 2, 0] * np.exp(logs[1, 2, 0])[:, None, None], alone, 1e-14)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "abs", "identity"])
def test_homogeneous_branches_take_weight_scale_for_branch_scale(
    rng: np.random.Generator, activation: str, backend: str, dtype: np.dtype[Any]
) -> None:
    block = dg.Block(activation=activation, weight_scale=0.5, branch_scale=0.8)
    p = random_problem(rng, block, 4, 9, 12, 3, dtype, vectors=False)
    other = block.replace(weight_scale=2.0, branch_scale=0.05)
    got, want = (dg.jacobian(b, p.weights, p.x, backend=backend) for b in (other, block))
    assert_close(got, want, 50 * float(np.finfo(dtype).eps))


def test_order_of_features_and_of_hidden_units_does_not_matter(rng: np.random.Generator, backend: str) -> None:
    block = dg.Block(activation="silu", branch="gated", pre_norm="layer", post_norm="rms")
    p = random_problem(rng, block, 3, 9, 13, 4)
    d, m = rng.permutation(9), rng.permutation(13)
    axes: dict[str, Any] = {"up": (d[:, None], m), "gate": (d[:, None], m), "down": (m[:, None], d)}
    axes |= {"b_up": (m,), "b_gate": (m,)}
    moved: dict[str, Any] = {name: array[:, *axes.get(name, (d,))] for name, array in p.weights.items()}
    got = dg.jacobian(block, dg.Weights(**moved), p.x[:, d], backend=backend)
    want = dg.jacobian(block, p.weights, p.x, backend=backend)
    assert_close(got, want[:, d[:, None], d], 1e-13)


def test_a_branch_left_out_or_a_skip_left_out(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, dg.Block(branch_scale=0.0, skip_scale=[2.0, -3.0, 0.5]), 3, 5, 7, 2, vectors=False)
    up = np.array(p.weights.up)
    up[0, 0, 0] = np.nan
    assert p.weights.down is not None
    found = dg.jacobian(p.block, dg.Weights(up, p.weights.down), p.x, backend=backend)
    assert np.array_equal(found, np.broadcast_to(-3.0 * np.eye(5), (2, 5, 5)))
    plain = dg.Block(activation="identity", pre_norm="none", skip_scale=0.0)
    want = np.linalg.multi_dot([matrix for pair in zip(p.weights.up, p.weights.down, strict=True) for matrix in pair]).T
    assert_close(dg.jacobian(plain, p.weights, p.x, backend=backend), np.broadcast_to(want, (2, 5, 5)), 1e-14)


def test_units_that_are_off_contribute_exactly_nothing(
    rng: np.random.Generator, backend: str, dtype: np.dtype[Any]
) -> None:
    p = random_problem(rng, dg.Block(pre_norm="none"), 1, 9, 16, 5, dtype, vectors=False)
    bias = np.zeros((1, 16), dtype)
    bias[0, ::2] = -1e3  # off for every example
    assert p.weights.down is not None
    up, down = np.array(p.weights.up), np.array(p.weights.down)
    want = dg.jacobian(p.block, dg.Weights(up, down, b_up=bias), p.x, backend=backend)
    up[0, :, ::2] *= 50
    down[0, ::2] = np.finfo(dtype).max
    assert_same_bits(dg.jacobian(p.block, dg.Weights(up, down, b_up=bias), p.x, backend=backend), want)


@pytest.mark.parametrize(("skip", "alpha"), [(1.0, 4.0), (0.0, 0.3), (-0.2, 0.2)])
def test_jacobians_stay_in_range_at_any_depth(skip: float, alpha: float, backend: str, dtype: np.dtype[Any]) -> None:
    depth, width = 2000 if backend == "native" else 800, 6
    block = dg.Block(activation="gelu", pre_norm="none", skip_scale=skip, weight_scale=alpha)
    weights = dg.initialize(block, depth, width, rng=3, dtype=dtype)
    x = np.zeros((2, width), dtype)  # a fixed point, at which gelu has slope 1/2
    assert weights.down is not None
    product, exponent = np.eye(width), 0
    wanted: dict[int, tuple[Array, int]] = {}
    ups, downs = weights.up.astype(np.float64), weights.down.astype(np.float64)
    for layer in range(depth):
        branch = float(dtype.type(alpha)) ** 2 / 2 * (ups[layer] @ downs[layer])
        product = (float(dtype.type(skip)) * np.eye(width) + branch).T @ product
        power = np.frexp(np.max(np.abs(product)))[1]
        product, exponent = np.ldexp(product, -power), exponent + power
        wanted[layer + 1] = product, exponent
    found, logs = dg.jacobian(block, weights, x, depths=[10, depth], return_log_scale=True, backend=backend)
    assert logs.dtype == np.float64
    for place, after in enumerate((10, depth)):
        matrix, exponent = wanted[after]
        largest = np.max(np.abs(found[place]), axis=(1, 2))
        assert np.all((largest >= 1) & (largest < 2))
        powers = np.round(logs[place] / np.log(2)).astype(int)
        assert np.array_equal(powers * np.log(2), logs[place])
        got = np.ldexp(np.float64(found[place]), (powers - exponent)[:, None, None])
        assert_close(got, np.broadcast_to(matrix, got.shape), 10 * after * float(np.finfo(dtype).eps))
    assert abs(exponent) > 1100
    whole = dg.jacobian(block, weights, x, backend=backend)
    assert np.all(np.abs(whole) == (np.inf if exponent > 0 else 0))


def test_what_is_not_finite_keeps_its_place(backend: str) -> None:
    block = dg.Block(activation="identity", pre_norm="none")
    up = np.zeros((1, 3, 3))
    up[0, 0, 1] = np.inf
    weights = dg.Weights(up, np.broadcast_to(np.eye(3), (1, 3, 3)))
    x = np.array([[1.0, 2.0, 3.0], [np.nan, 0.0, 0.0]])
    plain = dg.jacobian(block, weights, x, backend=backend)
    found, logs = dg.jacobian(block, weights, x, return_log_scale=True, backend=backend)
    assert not np.all(np.isfinite(plain[0]))
    assert not np.any(logs)
    assert_same_bits(found, plain)


@pytest.mark.parametrize("branch", BRANCHES)
def test_empty_axes(branch: str, backend: str) -> None:
    block = dg.Block(branch=branch, pre_norm="layer")
    for p in empty_problems(block):
        depth, (*replicates, batch, width) = p.weights.depth, p.x.shape
        for depths in (None, list(range(depth + 1)), list[int]()):
            found, logs = dg.jacobian(block, p.weights, p.x, depths=depths, return_log_scale=True, backend=backend)
            axes = () if depths is None else (len(depths),)
            assert found.shape == (*replicates, *axes, batch, width, width)
            assert logs.shape == found.shape[:-2]
        if not depth or not p.weights.hidden:
            assert_same_bits(
                dg.jacobian(block, p.weights, p.x, backend=backend), np.broadcast_to(np.eye(width), found.shape[1:])
            )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"depths": 3},
            TypeError,
            r"depths must be a sequence of integers from 0 to 2.*got 3; give one depth as \[3\]",
        ),
        ({"depths": [3]}, ValueError, r"depths\[0\]=3 must be at most 2"),
        ({"depths": [0, -1]}, ValueError, r"depths\[1\]=-1 must be an integer >= 0"),
        ({"depths": [1.0]}, TypeError, r"depths\[0\] must be an integer"),
        ({"depths": [True]}, TypeError, r"depths\[0\] must be an integer"),
        ({"return_log_scale": 1}, TypeError, "return_log_scale must be True or False"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"backend": "cuda"}, ValueError, "backend='cuda'"),
        ({"x": np.zeros(4)}, ValueError, r"x must have shape \(\.\.\., B, 4\).*x\[None\]"),
        ({"x": np.zeros((2, 4), np.float32)}, TypeError, "x is float32 but weights is float64"),
        ({"block": "relu"}, TypeError, "block must be a Block"),
        ({"block": dg.Block(branch="gated")}, ValueError, "needs weights with gate"),
        ({"weights": None}, TypeError, "weights must be a Weights"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"block": dg.Block(), "weights": dg.initialize(dg.Block(), 2, 4, rng=0)}
    given |= {"x": np.zeros((2, 4)), "backend": "reference"} | options
    with pytest.raises(kind, match=message):
        dg.jacobian(**given)
    with pytest.raises(kind, match=message):
        dg.jacobian_prefixes(**given)
