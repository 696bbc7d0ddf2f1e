"""Weights and initialize: what is kept, what is copied, what is refused, what is drawn."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from problems import BIASES, GAINS, MATRICES, SHIFTS, random_weights

import depthgauge as dg
from depthgauge.stacks.initialization import INITIALIZERS

GATED = dg.Block(branch="gated")


def test_sizes_and_fields(rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    weights = random_weights(rng, GATED, 2, 3, 4, dtype)
    assert (weights.depth, weights.width, weights.hidden, weights.dtype) == (2, 3, 4, dtype)
    assert weights.replicates == ()
    names = [name for name, _ in weights.items()]
    assert set(names) == {*MATRICES["gated"], *BIASES["gated"], *GAINS, *SHIFTS}
    assert "\n" not in repr(weights)
    assert "depth=2, width=3, hidden=4" in repr(weights)


def test_native_arrays_are_kept_and_updates_seen() -> None:
    up = np.zeros((2, 3, 3))
    weights = dg.Weights(up, up)
    up[1, 2, 0] = 5.0
    assert weights.up is up
    assert weights.down is not None
    assert weights.down[1, 2, 0] == 5.0


@pytest.mark.parametrize(
    "other",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
        lambda a: a[:, ::-1].copy()[:, ::-1],
        lambda a: a.astype(a.dtype.newbyteorder("S")),
        lambda a: a.tolist(),
    ],
    ids=["fortran", "strided", "reversed", "byte-swapped", "list"],
)
def test_other_layouts_are_copied_once(rng: np.random.Generator, other: Any) -> None:
    up = rng.standard_normal((2, 3, 4))
    weights = dg.Weights(other(up))
    np.testing.assert_array_equal(weights.up, up)
    assert weights.up.flags.c_contiguous
    assert weights.up.dtype.isnative


def test_copy_means_what_it_means_in_numpy(rng: np.random.Generator) -> None:
    up = rng.standard_normal((2, 3, 4))
    assert not np.shares_memory(dg.Weights(up, copy=True).up, up)
    assert dg.Weights(up, copy=False).up is up
    with pytest.raises(ValueError, match="up is not in native C order"):
        dg.Weights(np.asfortranarray(up), copy=False)
    with pytest.raises(TypeError, match="copy"):
        dg.Weights(up, copy="yes")  # type: ignore[arg-type]


def test_a_memory_map_is_kept(tmp_path: Any) -> None:
    path = tmp_path / "up.npy"
    np.save(path, np.ones((2, 3, 3)))
    mapped = np.load(path, mmap_mode="r")
    weights = dg.Weights(mapped)
    assert np.shares_memory(weights.up, mapped)
    assert not weights.up.flags.writeable


def test_wrong_shapes_name_the_field() -> None:
    up = np.zeros((2, 3, 4))
    with pytest.raises(ValueError, match=r"up must have shape \(\.\.\., L, d, m\); got \(3, 4\)"):
        dg.Weights(up[0])
    with pytest.raises(
        ValueError, match=r"down must have shape \(\.\.\., L, m, d\).*\(\.\.\., 2, 4, 3\); got \(2, 3, 4"
    ):
        dg.Weights(up, up)
    with pytest.raises(ValueError, match=r"b_up must have shape \(\.\.\., L, m\)"):
        dg.Weights(up, b_up=np.zeros(4))
    with pytest.raises(ValueError, match="pre_gain"):
        dg.Weights(up, pre_gain=np.zeros((3, 3)))
    with pytest.raises(ValueError, match="gate"):
        dg.Weights(up, gate=np.zeros((2, 4, 3)))
    with pytest.raises(ValueError, match=r"do not broadcast: up \(5,\), b_up \(4,\)"):
        dg.Weights(np.zeros((5, 2, 3, 4)), b_up=np.zeros((4, 2, 4)))


def test_dtypes_never_mix() -> None:
    up = np.zeros((2, 3, 3), np.float32)
    with pytest.raises(TypeError, match="down is float64 but up is float32"):
        dg.Weights(up, up.astype(np.float64))
    with pytest.raises(TypeError, match="up has dtype int64"):
        dg.Weights(up.astype(np.int64))
    with pytest.raises(TypeError, match="up"):
        dg.Weights(None)  # type: ignore[arg-type]


def test_replicate_axes_broadcast_between_fields() -> None:
    weights = dg.Weights(np.zeros((5, 1, 2, 3, 3)), b_up=np.zeros((4, 2, 3)))
    assert weights.replicates == (5, 4)
    assert weights.depth == 2


def test_slices_are_views_of_layers(rng: np.random.Generator) -> None:
    weights = random_weights(rng, GATED, 4, 3, 5)
    part = weights[1:3]
    assert part.depth == 2
    for (name, array), (_, whole) in zip(part.items(), weights.items(), strict=True):
        np.testing.assert_array_equal(array, whole[1:3], err_msg=name)
        assert np.shares_memory(array, whole), name
    assert weights[:0].depth == 0
    with pytest.raises(TypeError, match=r"weights\[:k\]"):
        weights[0]  # type: ignore[index]


def test_slices_of_replicates_take_the_layer_axis(rng: np.random.Generator) -> None:
    weights = random_weights(rng, GATED, 4, 3, 5, replicates=(2,))
    for (name, array), (_, whole) in zip(weights[:3].items(), weights.items(), strict=True):
        np.testing.assert_array_equal(array, whole[:, :3], err_msg=name)


def test_as_replicates_makes_each_block_its_own_stack(rng: np.random.Generator) -> None:
    weights = random_weights(rng, GATED, 4, 3, 5, replicates=(2,))
    split = weights.as_replicates()
    assert split.depth == 1
    assert split.replicates == (2, 4)
    for (name, array), (_, whole) in zip(split.items(), weights.items(), strict=True):
        assert np.shares_memory(array, whole), name
        np.testing.assert_array_equal(array[:, :, 0], whole, err_msg=name)


def test_weights_pickle_and_are_frozen(rng: np.random.Generator) -> None:
    weights = random_weights(rng, GATED, 2, 3, 4)
    copy = pickle.loads(pickle.dumps(weights))
    for (name, array), (other, whole) in zip(copy.items(), weights.items(), strict=True):
        assert name == other
        np.testing.assert_array_equal(array, whole)
    assert copy.gate is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        weights.up = copy.up  # type: ignore[misc]


def test_from_linear_transposes_matrices_alone(rng: np.random.Generator) -> None:
    weights = random_weights(rng, GATED, 3, 4, 5)
    given: dict[str, Any] = {name: array for name, array in weights.items()}
    for name in MATRICES["gated"]:
        given[name] = np.swapaxes(given[name], -1, -2)
    stacks = dg.Weights.from_linear(**given)
    lists = dg.Weights.from_linear(**{name: list(array) for name, array in given.items()})
    for made in (stacks, lists):
        for name, array in weights.items():
            np.testing.assert_array_equal(getattr(made, name), array, err_msg=name)
            assert not np.shares_memory(getattr(made, name), given[name])


def test_from_linear_converts_only_when_told() -> None:
    half = np.ones((2, 3, 4), np.float16)
    assert dg.Weights.from_linear(half, dtype=np.float32).up.dtype == np.float32
    assert dg.Weights.from_linear(half.astype(np.int32), dtype=np.float64).up.shape == (2, 4, 3)
    with pytest.raises(TypeError, match="up has dtype float16"):
        dg.Weights.from_linear(half)
    with pytest.raises(TypeError, match="not real numbers"):
        dg.Weights.from_linear(half.astype(complex), dtype=np.float64)
    with pytest.raises(TypeError, match="dtype=float16"):
        dg.Weights.from_linear(half, dtype=np.float16)
    with pytest.raises(ValueError, match=r"up\[1\]"):
        dg.Weights.from_linear([np.ones((2, 3)), np.ones((3, 3))])
    with pytest.raises(ValueError, match="field of Weights='bias' is unknown"):
        dg.Weights.from_linear(half, dtype=np.float32, bias=np.ones(2))


def test_from_linear_is_torch_linear(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    layers = [(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)) for _ in range(2)]
    weights = dg.Weights.from_linear(
        [up.weight.detach() for up, _ in layers],
        [down.weight.detach() for _, down in layers],
        b_up=[up.bias.detach() for up, _ in layers],
        b_down=[down.bias.detach() for _, down in layers],
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    h = torch.from_numpy(x)
    for up, down in layers:
        h = h + down(torch.relu(up(h)))
    output = dg.forward(dg.Block.placed("none"), weights, x, backend="reference").output
    np.testing.assert_allclose(output, h.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("branch", ["mlp", "linear", "gated"])
@pytest.mark.parametrize("init", INITIALIZERS)
def test_initial_shapes_and_determinism(branch: str, init: str, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch=branch)
    hidden = 4 if branch == "linear" else 6
    first, again = (dg.initialize(block, 3, 4, hidden, init=init, rng=5, dtype=dtype) for _ in range(2))
    assert {name for name, _ in first.items()} == set(MATRICES[branch])
    assert (first.depth, first.width, first.hidden, first.dtype) == (3, 4, hidden, dtype)
    for (name, array), (_, other) in zip(first.items(), again.items(), strict=True):
        np.testing.assert_array_equal(array, other, err_msg=name)


def test_the_draws_are_those_of_the_generator_in_order() -> None:
    weights = dg.initialize(GATED, 2, 3, 5, rng=9)
    generator = np.random.default_rng(9)
    for layer in range(2):
        for name, shape in (("up", (3, 5)), ("gate", (3, 5)), ("down", (5, 3))):
            expected = generator.standard_normal(shape) * np.sqrt(1 / shape[0])
            np.testing.assert_array_equal(getattr(weights, name)[layer], expected, err_msg=f"{name}[{layer}]")


def test_float32_is_the_cast_of_float64() -> None:
    single = dg.initialize(GATED, 2, 3, 5, init="he", rng=9, dtype=np.float32)
    double = dg.initialize(GATED, 2, 3, 5, init="he", rng=9)
    for (name, array), (_, wide) in zip(single.items(), double.items(), strict=True):
        np.testing.assert_array_equal(array, wide.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("init", INITIALIZERS)
@pytest.mark.parametrize(
    "seeds",
    [[3, 4, 5], (np.int64(3), 4, 5), range(3, 6), np.array([3, 4, 5]), [np.random.SeedSequence(s) for s in (3, 4, 5)]],
)
def test_each_replicate_is_its_single_call(init: str, seeds: Any) -> None:
    together = dg.initialize(GATED, 2, 3, 5, init=init, rng=seeds)
    assert together.replicates == (3,)
    for replicate, seed in enumerate((3, 4, 5)):
        alone = dg.initialize(GATED, 2, 3, 5, init=init, rng=np.random.default_rng(seed))
        for (name, array), (_, whole) in zip(alone.items(), together.items(), strict=True):
            np.testing.assert_array_equal(whole[replicate], array, err_msg=name)


def spread(init: str, name: str, block: dg.Block = GATED) -> float:
    weights = dg.initialize(block, 4, 64, 128, init=init, rng=1)
    return float(np.std(getattr(weights, name)))


@pytest.mark.parametrize(
    ("init", "up", "gate", "down"),
    [
        ("lecun", 1 / 64, 1 / 64, 1 / 128),
        ("he", 1 / 64, 2 / 64, 1 / 128),
        ("xavier", 2 / 192, 2 / 192, 2 / 192),
        ("orthogonal", 1 / 128, 1 / 128, 1 / 128),
        ("depth_scaled", 1 / 64, 1 / 64, 1 / 128 / 4),
        ("zero", 1 / 64, 1 / 64, 0),
        ("fixup", 1 / 64 / 2, 2 / 64 / 2, 0),
    ],
)
def test_variances(init: str, up: float, gate: float, down: float) -> None:
    # Some 32768 normals a matrix: four standard errors of the standard deviation are 1.6 %.
    for name, variance in (("up", up), ("gate", gate), ("down", down)):
        assert spread(init, name) == pytest.approx(np.sqrt(variance), rel=0.016), name


def test_variances_of_a_plain_branch() -> None:
    assert spread("he", "up", dg.Block()) == pytest.approx(np.sqrt(2 / 64), rel=0.016)
    assert spread("fixup", "up", dg.Block()) == pytest.approx(np.sqrt(2 / 64 / 4), rel=0.016)


@pytest.mark.parametrize(("width", "hidden"), [(4, 4), (3, 7), (7, 3)])
def test_orthogonal_matrices_are(width: int, hidden: int) -> None:
    weights = dg.initialize(GATED, 3, width, hidden, init="orthogonal", rng=2)
    for name, array in weights.items():
        wide = array if array.shape[1] <= array.shape[2] else np.swapaxes(array, 1, 2)
        gram = wide @ np.swapaxes(wide, 1, 2)
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(len(gram[0])), gram.shape), atol=1e-14, err_msg=name)


def test_orthogonal_matrices_are_uniform() -> None:
    # Without the sign correction the mean of the first entry is far from 0.
    weights = dg.initialize(dg.Block(branch="linear"), 4000, 2, init="orthogonal", rng=2)
    assert abs(float(np.mean(weights.up[:, 0, 0]))) < 4 * np.sqrt(0.5 / 4000)
    assert abs(float(np.mean(np.linalg.det(weights.up)))) < 4 / np.sqrt(4000)


def test_the_last_matrix_may_be_zero_without_changing_the_others() -> None:
    lecun, zero = (dg.initialize(GATED, 3, 4, init=init, rng=2) for init in ("lecun", "zero"))
    np.testing.assert_array_equal(zero.up, lecun.up)
    np.testing.assert_array_equal(zero.gate, lecun.gate)
    assert not np.any(zero.down)
    assert not np.any(dg.initialize(dg.Block(branch="linear"), 3, 4, init="fixup", rng=2).up)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("init", INITIALIZERS)
def test_empty_sizes(sizes: tuple[int, int, int], init: str) -> None:
    weights = dg.initialize(GATED, *sizes, init=init, rng=0)
    assert (weights.depth, weights.width, weights.hidden) == sizes
    assert dg.initialize(GATED, *sizes, init=init, rng=[]).replicates == (0,)


@pytest.mark.parametrize("sizes", [(10**9, 10**5, 10**5), (10**30, 2, 2), (0, 10**10, 10**10), (1, 2, 10**400)])
def test_sizes_beyond_any_array_are_named(sizes: tuple[int, int, int]) -> None:
    depth, width, hidden = sizes
    with pytest.raises(ValueError, match=rf"depth={depth}, width={width}, hidden={hidden} ask for \d+ bytes"):
        dg.initialize(dg.Block(), *sizes, rng=0)


def test_initialize_refuses() -> None:
    block = dg.Block()
    with pytest.raises(ValueError, match="init='kaiming' is unknown; did you mean 'he'"):
        dg.initialize(block, 1, 2, init="kaiming", rng=0)
    with pytest.raises(ValueError, match="depth=-1"):
        dg.initialize(block, -1, 2, rng=0)
    with pytest.raises(TypeError, match="width"):
        dg.initialize(block, 1, 2.0, rng=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hidden=3 must equal width=2"):
        dg.initialize(dg.Block(branch="linear"), 1, 2, 3, rng=0)
    with pytest.raises(TypeError, match="rng"):
        dg.initialize(block, 1, 2, rng=None)
    with pytest.raises(TypeError, match="rng"):
        dg.initialize(block, 1, 2, rng=[0.5])
    with pytest.raises(TypeError, match="dtype=float16"):
        dg.initialize(block, 1, 2, rng=0, dtype=np.float16)
    with pytest.raises(TypeError, match="block must be a Block"):
        dg.initialize("mlp", 1, 2, rng=0)  # type: ignore[arg-type]


def test_another_shape_in_place_is_seen(backend: str, rng: np.random.Generator) -> None:
    """The stack that is kept between calls is that of the arrays as they are now."""
    block, x = dg.Block(), rng.standard_normal((4, 6))
    weights = dg.initialize(block, 6, 6, rng=1)
    dg.forward(block, weights, x, backend=backend)
    weights.up.resize((2, 3, 6, 6), refcheck=False)
    weights.down.resize((2, 3, 6, 6), refcheck=False)  # type: ignore[union-attr]  # an MLP has one
    want = dg.forward(block, dg.Weights(weights.up.copy(), weights.down.copy()), x, backend=backend)  # type: ignore[union-attr]
    got = dg.forward(block, weights, x, backend=backend)
    assert got.output.shape == (2, 4, 6)
    np.testing.assert_array_equal(got.output, want.output)
    object.__setattr__(weights, "up", weights.up * 2)
    other = dg.forward(block, dg.Weights(weights.up, weights.down), x, backend=backend)
    np.testing.assert_array_equal(dg.forward(block, weights, x, backend=backend).output, other.output)
