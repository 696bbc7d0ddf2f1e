"""GeneratedWeights: what is drawn, and results that are those of the stored weights, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from interrupts import needs_signals, output_after_control_c
from problems import Shape, arrays_of, assert_same_bits

import depthgauge as dg
from depthgauge.equation import BRANCHES
from depthgauge.stacks import segments
from depthgauge.stacks.initialization import INITIALIZERS, matrix_shapes, standard_deviation

MLP = dg.Block()
GENERATED = [init for init in INITIALIZERS if init != "orthogonal"]


@pytest.fixture(params=[1, 2000, 32 << 20], ids=["a-layer", "some-layers", "all-layers"])
def _segment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one layer, of some, and of all."""
    monkeypatch.setattr(segments, "_SEGMENT_BYTES", request.param)


def generated(block: dg.Block, depth: int = 5, width: int = 6, hidden: int = 7, **options: Any) -> dg.GeneratedWeights:
    hidden = width if block.branch == "linear" else hidden
    chosen: dict[str, Any] = {"seed": 3, "init": "he"} | options
    return dg.GeneratedWeights(block, depth, width, hidden, **chosen)


def assert_same_results(block: dg.Block, weights: dg.GeneratedWeights, of_x: Shape, backend: str, probes: int) -> None:
    """Compare every result of generated weights with that of the stored ones."""
    rng = np.random.default_rng(0)
    stored = weights.materialize()
    x = rng.standard_normal((*of_x, 4, weights.width)).astype(weights.dtype)
    found: list[dict[str, Any]] = []
    for w in (weights, stored):
        fwd = dg.forward(block, w, x, quantiles=(0.1, 0.5), cosine=True, backend=backend)
        vector = np.random.default_rng(1).standard_normal(fwd.output.shape).astype(w.dtype)
        several = np.multiply.outer(np.arange(1, probes + 1, dtype=w.dtype), vector)
        arrays = {f"forward {name}": a for name, a in arrays_of(fwd).items()} | {"states": fwd.states}
        brief = dg.forward(block, w, x, keep="nothing", backend=backend)
        arrays |= {f"brief {name}": a for name, a in arrays_of(brief).items()}
        choices: tuple[Any, ...] = (False, True, "rms")
        for grads in choices:
            bwd = dg.vjp(block, w, fwd, vector, weight_grads=grads, quantiles=0.3)
            arrays |= {f"vjp {grads} {name}": a for name, a in arrays_of(bwd).items()}
        arrays |= {f"probes {name}": a for name, a in arrays_of(dg.vjp(block, w, fwd, several)).items()}
        arrays |= {f"jvp {name}": a for name, a in arrays_of(dg.jvp(block, w, fwd, several)).items()}
        found.append(arrays)
    assert found[0].keys() == found[1].keys()
    for name, array in found[1].items():
        assert_same_bits(found[0][name], array, name)
        assert found[0][name].flags.owndata, name
        assert found[0][name].flags.c_contiguous, name


@pytest.mark.usefixtures("_segment")
@pytest.mark.parametrize("seed", [3, (4, 2**64 - 1, 3)], ids=["one", "three"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_results_are_those_of_the_stored_weights(branch: str, seed: Any, backend: str, dtype: np.dtype[Any]) -> None:
    scale = (0.5, 1.0, 0.0, 0.7, 0.2)
    for block, of_x in (
        (dg.Block(branch=branch, branch_scale=0.5), ()),
        (dg.Block(branch=branch, pre_norm="layer", output_norm="rms", branch_scale=scale), (2, 1)),
        (dg.Block(branch=branch, activation="gelu", pre_norm="none", post_norm="rms", skip_scale=scale), (1,)),
    ):
        assert_same_results(block, generated(block, seed=seed, dtype=dtype), of_x, backend, 2)


@pytest.mark.parametrize(("depth", "width", "hidden"), [(0, 3, 4), (3, 4, 0), (3, 0, 4), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("seed", [3, (), (1, 2)], ids=["one", "none", "two"])
def test_empty_axes(
    depth: int, width: int, hidden: int, seed: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = generated(MLP, depth, width, hidden, seed=seed)
    assert_same_results(MLP, weights, (), backend, 0)
    monkeypatch.setattr(segments, "_SEGMENT_BYTES", 1)
    assert_same_results(MLP, weights, (), backend, 1)


@pytest.mark.usefixtures("_segment")
@pytest.mark.parametrize("extreme", [np.nan, np.inf, 1e-300])
def test_extreme_examples(extreme: float, backend: str) -> None:
    """The moments that a segment passes on are those of the state, whatever it holds."""
    weights = generated(MLP, depth=6)
    x = np.random.default_rng(0).standard_normal((5, 6))
    x[1] *= extreme
    x[3, 2] = extreme
    got, want = (dg.forward(MLP, w, x, backend=backend) for w in (weights, weights.materialize()))
    for name, array in arrays_of(want).items():
        assert_same_bits(arrays_of(got)[name], array, name)


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("init", GENERATED)
def test_entries_are_normals_times_the_deviations_of_initialize(init: str, branch: str, dtype: np.dtype[Any]) -> None:
    block = dg.Block(branch=branch)
    size = (40, 64, 64 if branch == "linear" else 96)
    weights = dg.GeneratedWeights(block, *size, init=init, seed=1, dtype=dtype).materialize()
    drawn = dict(dg.initialize(block, *size, init=init, rng=1, dtype=dtype).items())
    for name, array in weights.items():
        assert array.shape == drawn[name].shape
        spread, want = float(np.std(array, dtype=np.float64)), float(np.std(drawn[name], dtype=np.float64))
        assert abs(spread - want) <= 8 * want / math.sqrt(2 * array.size), name
        assert not np.signbit(array).any() or spread > 0
    assert weights.dtype == dtype


def test_numbers_are_those_of_the_documented_counters(dtype: np.dtype[Any]) -> None:
    from depthgauge.backends.reference.philox import normals

    block = dg.Block(branch="gated")
    weights = dg.GeneratedWeights(block, 3, 5, 7, seed=(11, 2**63), dtype=dtype).materialize()
    for number, (name, fan_in) in {1: ("up", 5), 2: ("gate", 5), 3: ("down", 7)}.items():
        array = getattr(weights, name)
        for replicate, seed in enumerate((11, 2**63)):
            for layer in range(3):
                want = normals(seed, 35, dtype, layer=layer, matrix=number) * dtype.type(math.sqrt(1 / fan_in))
                assert_same_bits(array[replicate, layer], want.reshape(array.shape[2:]), name)


@pytest.mark.parametrize("init", GENERATED)
def test_layers_do_not_depend_on_depth_init_or_the_other_seeds(init: str) -> None:
    block = dg.Block(branch="gated")
    alone = generated(block, 4, seed=9, init=init).materialize()
    several = generated(block, 4, seed=[8, 9], init=init).materialize()
    assert several.replicates == (2,)
    deeper = generated(block, 9, seed=9, init=init).materialize()
    plain = generated(block, 4, seed=9, init="lecun").materialize()
    for name, array in alone.items():
        assert_same_bits(getattr(several, name)[1], array, name)
        whole = getattr(deeper, name)[:4]
        if init not in ("depth_scaled", "fixup"):
            assert_same_bits(whole, array, name)
        if array.any():
            ratio = np.array([np.ptp(a / getattr(plain, name)) for a in (array, whole)])
            assert np.all(ratio < 1e-14), name


def test_backends_and_threads_make_the_same_weights(dtype: np.dtype[Any]) -> None:
    weights = generated(MLP, 3, 33, 17, seed=(1, 2), dtype=dtype)
    want = weights.materialize(backend="reference")
    for threads in (1, 2):
        for name, array in weights.materialize(backend="native", threads=threads).items():
            assert_same_bits(array, getattr(want, name), name)


def test_a_forward_pickles_and_its_weights_are_known_by_value(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SEGMENT_BYTES", 1500)
    weights, x = generated(MLP), np.ones((3, 6))
    fwd = dg.forward(MLP, weights, x, backend=backend)
    there = pickle.loads(pickle.dumps(fwd))
    assert_same_bits(there.states, fwd.states)
    want = dg.vjp(MLP, weights, fwd, x)
    for kept in (there, fwd):
        # Equal weights will do, for equal ones are the same; others will not.
        got = dg.vjp(MLP, generated(MLP), kept, x)
        assert_same_bits(got.input_gradient, want.input_gradient)
        assert_same_bits(dg.jvp(MLP, there.weights, kept, x).output, dg.jvp(MLP, weights, fwd, x).output)
        for other in (generated(MLP, seed=4), weights.materialize()):
            with pytest.raises(ValueError, match="of other weights"):
                dg.vjp(MLP, other, kept, x)
    brief = dg.forward(MLP, weights, x, backend=backend, keep="nothing")
    with pytest.raises(ValueError, match="kept nothing"):
        dg.vjp(MLP, weights, brief, x)
    with pytest.raises(ValueError, match="kept nothing"):
        _ = brief.states
    assert len(fwd.table()) == 6


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


def test_more_layers_than_31_bits_count(backend: str) -> None:
    weights = dg.GeneratedWeights(dg.Block(), 2**32, 4, seed=5)
    for first in (2**31 - 1, 2**32 - 2):
        fields = {"up": np.empty((1, 2, 4, 4)), "down": np.empty((1, 2, 4, 4))}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            weights.fill(fields, first, backend, 1)
        assert len(np.unique([*fields["up"].ravel(), *fields["down"].ravel()])) == 64


def test_plain_data() -> None:
    weights = dg.GeneratedWeights(dg.Block(branch="gated"), 3, 4, 5, init="xavier", seed=[1, 2], dtype=np.float32)
    assert (weights.depth, weights.width, weights.hidden, weights.dtype) == (3, 4, 5, np.dtype(np.float32))
    assert weights.replicates == (2,)
    assert json.loads(json.dumps(weights.to_dict())) == {
        "branch": "gated",
        "depth": 3,
        "width": 4,
        "hidden": 5,
        "init": "xavier",
        "seed": [1, 2],
        "dtype": "float32",
        "layout": 1,
    }
    assert pickle.loads(pickle.dumps(weights)) == weights == copy.deepcopy(weights)
    assert len({weights, pickle.loads(pickle.dumps(weights))}) == 1
    assert "\n" not in repr(weights)
    assert "seed=(1, 2)" in repr(weights)
    assert len(repr(generated(MLP, seed=range(1000)))) < 200
    with pytest.raises(dataclasses.FrozenInstanceError):
        weights.depth = 4  # type: ignore[misc]
    assert generated(MLP, seed=np.int64(3)) == generated(MLP, seed=3)
    assert generated(MLP, seed=np.array([3, 4])) == generated(MLP, seed=(3, 4)) != generated(MLP, seed=3)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"init": "orthogonal"}, ValueError, "needs each whole matrix at once.*use initialize"),
        ({"init": "kaiming"}, ValueError, "did you mean 'he'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": [1, 2**64]}, ValueError, r"seed\[1\]=18446744073709551616"),
        ({"seed": 0.5}, TypeError, "seed must be an integer"),
        ({"seed": None}, TypeError, "seed must be an integer"),
        ({"depth": 2**32 + 1}, ValueError, r"at most 2\*\*32"),
        ({"dtype": np.int32}, TypeError, "dtype=int32"),
        ({"seed": np.zeros((2, 2), int)}, TypeError, "a sequence of them, of one axis"),
        ({"seed": np.random.SeedSequence(1)}, TypeError, "generate_state"),
        ({"seed": np.random.SeedSequence(1).spawn(2)}, TypeError, r"seed\[0\].*generate_state"),
        ({"seed": [1, True]}, TypeError, r"seed\[1\] must be an integer"),
        ({"hidden": 2**62}, ValueError, f"hidden={2**62}"),
        ({"width": 2**64}, ValueError, f"width={2**64}"),
        ({"width": 2**30, "seed": [1, 2]}, ValueError, f"width={2**30}"),
        ({"block": "mlp"}, TypeError, "block must be a Block"),
        ({"block": dg.Block(branch="linear"), "hidden": 9}, ValueError, "hidden=9 must equal width=4"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"block": MLP, "depth": 3, "width": 4, "seed": 1} | changes
    with pytest.raises(error, match=words):
        dg.GeneratedWeights(**arguments)


def test_weights_that_do_not_fit_are_refused() -> None:
    x = np.ones((2, 6))
    with pytest.raises(ValueError, match="needs weights with gate"):
        dg.forward(dg.Block(branch="gated"), generated(MLP), x)
    with pytest.raises(ValueError, match="no use for the weights' down"):
        dg.forward(dg.Block(branch="linear"), generated(MLP), x)
    with pytest.raises(ValueError, match="branch_scale has 4 values, but the weights have 5 layers"):
        dg.forward(dg.Block(branch_scale=[1.0] * 4), generated(MLP), x)
    with pytest.raises(ValueError, match="do not broadcast"):
        dg.forward(MLP, generated(MLP, seed=(1, 2)), np.ones((3, 2, 6)))
    with pytest.raises(TypeError, match="x is float64 but weights is float32"):
        dg.forward(MLP, generated(MLP, dtype=np.float32), x)
    with pytest.raises(ValueError, match=r"ask for .* bytes a field"):
        generated(MLP, 2**32, 2**20, 2**20).materialize()


def test_memory_does_not_grow_with_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SEGMENT_BYTES", 1 << 20)
    x = np.ones((2, 64))
    peaks = []
    for depth in (20, 400):
        weights = generated(MLP, depth, 64, 64)
        tracemalloc.start()
        fwd = dg.forward(MLP, weights, x, keep="nothing", backend="native")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert fwd.rms.shape == (depth + 1,)
    # The weights of 400 layers would take 26 MB; the statistics grow by some bytes a layer.
    assert peaks[1] < peaks[0] + 300_000


@pytest.mark.slow
@needs_signals
@pytest.mark.parametrize("step", ["forward", "vjp", "jvp"])
def test_control_c_stops_deep_stacks(step: str) -> None:
    code = """
import sys
import numpy as np
import depthgauge as dg
step, block = sys.argv[1], dg.Block(branch_scale=0.003)
x = dg.normal(1, (8, 64))
weights = dg.GeneratedWeights(block, 10_000, 64, seed=1)
fwd = dg.forward(block, weights, x)
print("ready", flush=True)
try:
    while True:
        if step == "forward":
            dg.forward(block, weights, x)
        else:
            getattr(dg, step)(block, weights, fwd, x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.forward(block, weights, x).rms, fwd.rms)
print("works", flush=True)
"""
    words = output_after_control_c(code, step, after=0.3, environment={"DEPTHGAUGE_BACKEND": "native"})
    assert words == ["interrupted", "works"]
