"""Weights that are never stored give, to the bit, the results of the same weights stored, and say who they are."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from problems import assert_same_bits

import depthgauge as dg
from depthgauge import _stretches
from depthgauge.equation import BRANCHES
from depthgauge.weights import INITIALIZERS, matrix_shapes, standard_deviation

DEPTH, WIDTH, HIDDEN = 6, 5, 7
GENERATED = tuple(init for init in INITIALIZERS if init != "orthogonal")


def generated_weights(block: dg.Block, **options: Any) -> dg.GeneratedWeights:
    hidden = WIDTH if block.branch == "linear" else HIDDEN
    return dg.GeneratedWeights(block, DEPTH, WIDTH, hidden, **options)


def assert_same_results(got: Any, want: Any) -> None:
    one, other = got.to_dict(), want.to_dict()
    assert one.keys() == other.keys()
    for name, value in other.items():
        if isinstance(value, np.ndarray):
            assert_same_bits(one[name], value, name)
        elif isinstance(value, dict):
            assert value.keys() == one[name].keys()
            for key, array in value.items():
                assert_same_bits(np.asarray(one[name][key]), np.asarray(array), f"{name} {key}")
        else:
            assert one[name] == value, name


@pytest.mark.parametrize("stretch", [1, 2000, 1 << 25])
@pytest.mark.parametrize(("leading", "seed"), [((), 3), ((3, 1), [3, 2**64 - 1])])
@pytest.mark.parametrize("branch", BRANCHES)
def test_results_are_those_of_the_weights_stored(
    branch: str,
    seed: Any,
    leading: tuple[int, ...],
    stretch: int,
    dtype: np.dtype[Any],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_stretches, "_STRETCH_BYTES", stretch)
    block = dg.Block(branch=branch, output_norm="layer", branch_scale=list(np.linspace(0.3, 0.8, DEPTH)))
    generated = generated_weights(block, seed=seed, dtype=dtype)
    stored = generated.materialize()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*leading, 4, WIDTH)).astype(dtype)
    options: dict[str, Any] = {"quantiles": (0.1, 0.9), "backend": backend, "threads": 2}
    for keep in ("states", "nothing"):
        forwards = [dg.forward(block, w, x, keep=keep, cosine=True, **options) for w in (generated, stored)]
        assert_same_results(*forwards)
        assert str(forwards[0].table()) == str(forwards[1].table())  # for NaNs
    fwd = dg.forward(block, generated, x, backend=backend)
    assert_same_bits(fwd.states, dg.forward(block, stored, x, backend=backend).states)
    vector = rng.standard_normal(fwd.output.shape).astype(dtype)
    probes = rng.standard_normal((2, 3, *fwd.output.shape)).astype(dtype)
    cases: list[tuple[Any, Any]] = [(vector, True), (vector, "rms"), (vector, False), (probes, False)]
    for v, grads in cases:
        want = dg.vjp(block, stored, x, v, weight_grads=grads, **options)
        for source in (x, fwd, pickle.loads(pickle.dumps(fwd))):
            got = dg.vjp(block, generated, source, v, weight_grads=grads, **options)
            assert_same_results(got, want)
            if got.weights is not None and want.weights is not None:
                for (name, array), (_, other) in zip(got.weights.items(), want.weights.items(), strict=True):
                    assert_same_bits(array, other, name)
    for v in (vector, probes):
        assert_same_results(*(dg.jvp(block, w, x, v, backend=backend) for w in (generated, stored)))


@pytest.mark.parametrize("init", GENERATED)
@pytest.mark.parametrize("branch", BRANCHES)
def test_layers_do_not_depend_on_how_many_there_are(branch: str, init: str, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch=branch)
    shallow, deep = (
        dg.GeneratedWeights(block, depth, WIDTH, seed=[1, 2], init=init, dtype=dtype).materialize() for depth in (4, 9)
    )
    for (name, array), (_, other) in zip(shallow.items(), deep[:4].items(), strict=True):
        last = name == ("up" if branch == "linear" else "down")
        if init != "fixup" and not (init == "depth_scaled" and last):
            assert_same_bits(array, other, name)


@pytest.mark.parametrize("init", GENERATED)
@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("depth", [0, 1, 2, 1105, 7076, 2**32])
def test_deviations_need_only_operations_that_round_the_same_everywhere(branch: str, init: str, depth: int) -> None:
    """Powers of libm differ with and without fused multiply-add: at depth 7076, for one."""
    shapes = matrix_shapes(branch, 12, 20 if branch != "linear" else 12)
    root = math.sqrt(max(depth, 1))
    for name, (fan_in, fan_out) in shapes.items():
        last = name == tuple(shapes)[-1]
        feeds = name == ("gate" if branch == "gated" else "up")
        want = math.sqrt((2 if init in ("he", "fixup") and feeds else 1) / fan_in)
        if init == "xavier":
            want = math.sqrt(2 / (fan_in + fan_out))
        if last and init in ("zero", "fixup"):
            want = 0.0
        elif init == "fixup":
            want /= root if branch == "mlp" else math.sqrt(root)
        elif init == "depth_scaled" and last:
            want /= root
        assert standard_deviation(init, name, shapes, max(depth, 1)) == want


def test_equal_when_they_make_the_same_weights() -> None:
    block = dg.Block()
    weights = generated_weights(block, seed=[1, np.uint64(2**64 - 1)], dtype=">f4")
    for other in (
        copy.copy(weights),
        copy.deepcopy(weights),
        pickle.loads(pickle.dumps(weights)),
        generated_weights(block, seed=(1, 2**64 - 1), dtype=np.float32),
    ):
        assert other == weights
        assert hash(other) == hash(weights)
    assert weights != generated_weights(block, seed=1, dtype=np.float32)
    assert json.loads(json.dumps(weights.to_dict()))["seed"] == [1, 2**64 - 1]


def test_more_layers_than_31_bits_count(backend: str) -> None:
    weights = dg.GeneratedWeights(dg.Block(), 2**32, 4, seed=5)
    for first in (2**31 - 1, 2**32 - 2):
        fields = {"up": np.empty((1, 2, 4, 4)), "down": np.empty((1, 2, 4, 4))}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            weights.fill(fields, first, backend, 1)
        assert len(np.unique([*fields["up"].ravel(), *fields["down"].ravel()])) == 64


@pytest.mark.parametrize(
    ("sizes", "options", "error", "words"),
    [
        ((2, 3), {"seed": np.zeros((2, 2), int)}, TypeError, "a sequence of them, of one axis"),
        ((2, 3), {"seed": np.random.SeedSequence(1)}, TypeError, "generate_state"),
        ((2, 3), {"seed": np.random.SeedSequence(1).spawn(2)}, TypeError, r"seed\[0\].*generate_state"),
        ((2, 3), {"seed": [1, -1]}, ValueError, r"seed\[1\]=-1"),
        ((2, 3), {"seed": [1, True]}, TypeError, r"seed\[1\] must be an integer"),
        ((2, 3), {"seed": "12"}, TypeError, "seed must be an integer"),
        ((2, 3), {"seed": 1, "init": "orthogonal"}, ValueError, "initialize"),
        ((2, 3, 2**62), {"seed": 1}, ValueError, f"hidden={2**62}"),
        ((2, 2**64), {"seed": 1}, ValueError, f"width={2**64}"),
        ((2, 2**30), {"seed": [1, 2]}, ValueError, f"width={2**30}"),
        ((2**32 + 1, 3), {"seed": 1}, ValueError, r"at most 2\*\*32"),
    ],
)
def test_wrong_arguments(sizes: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dg.GeneratedWeights(dg.Block(), *sizes, **options)
