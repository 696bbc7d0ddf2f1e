"""Every kind of bad argument, and every layout of a good one, at the public functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layouts import BAD_ARRAYS, LAYOUTS, Capsule, Exporter, X
from problems import Array, arrays_of, assert_same_bits, random_problem

import depthgauge as dg
from depthgauge._common import arguments

BLOCK = dg.Block()


def weights_like(x: Array) -> dg.Weights:
    return dg.initialize(BLOCK, 2, x.shape[-1], rng=3, dtype=x.dtype.newbyteorder("="))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replicates", [(), (2,)])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_any_layout_gives_what_a_contiguous_copy_gives(
    rng: np.random.Generator, backend: str, dtype: np.dtype[Any], layout: str, replicates: tuple[int, ...]
) -> None:
    # A gated branch has every field that there is.
    p = random_problem(rng, dg.Block(branch="gated", activation="gelu"), 3, 9, 7, 5, dtype, replicates=replicates)
    change = LAYOUTS[layout]
    relaid = dg.Weights(**{name: change(array) for name, array in p.weights.items()})
    before = p.x.copy()

    def everything(weights: dg.Weights, x: Any, vector: Any) -> list[dict[str, Array]]:
        fwd = dg.forward(p.block, weights, x, backend=backend, quantiles=[0.5], cosine=True)
        derivatives = (
            dg.jvp(p.block, weights, fwd, vector),
            dg.vjp(p.block, weights, fwd, vector),
            dg.vjp(p.block, weights, fwd, vector, weight_grads=True),
        )
        return [arrays_of(result) for result in (fwd, *derivatives)]

    plain = everything(p.weights, p.x, p.vector)
    for weights, x, vector in ((p.weights, change(p.x), change(p.vector)), (relaid, p.x, p.vector)):
        for want, got in zip(plain, everything(weights, x, vector), strict=True):
            for name, array in want.items():
                assert_same_bits(got[name], array, f"{layout}: {name}")
    np.testing.assert_array_equal(p.x, before)


def test_broadcast_inputs_are_read(rng: np.random.Generator, backend: str) -> None:
    p = random_problem(rng, BLOCK, 2, 6, 5, 4)
    x, g = np.broadcast_to(p.x[0], p.x.shape), np.broadcast_to(np.float64(0.5), p.x.shape)
    got = dg.vjp(BLOCK, p.weights, x, g, backend=backend)
    want = dg.vjp(BLOCK, p.weights, x.copy(), g.copy(), backend=backend)
    assert_same_bits(got.input_gradient, want.input_gradient)


def test_lists_of_floats_are_float64(backend: str) -> None:
    got = dg.forward(BLOCK, weights_like(X), X.tolist(), backend=backend)
    assert_same_bits(got.output, dg.forward(BLOCK, weights_like(X), X, backend=backend).output)


@pytest.mark.parametrize("wrapper", [Exporter, Capsule])
def test_objects_of_other_libraries_are_read(wrapper: Any) -> None:
    got = dg.forward(BLOCK, weights_like(X), wrapper(X), backend="reference")
    assert_same_bits(got.output, dg.forward(BLOCK, weights_like(X), X, backend="reference").output)


def test_torch_tensors_are_read_and_gradients_refused() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X.copy())
    got = dg.forward(BLOCK, weights_like(X), tensor.T.contiguous().T, backend="reference")
    assert_same_bits(got.output, dg.forward(BLOCK, weights_like(X), X, backend="reference").output)
    with pytest.raises(TypeError, match=r"x is a tensor that requires grad; pass x\.detach"):
        dg.forward(BLOCK, weights_like(X), tensor.requires_grad_(), backend="reference")
    with pytest.raises(TypeError, match="bfloat16"):
        dg.forward(BLOCK, weights_like(X), torch.zeros(4, 5, dtype=torch.bfloat16), backend="reference")
    with pytest.raises(TypeError, match="x"):
        dg.forward(BLOCK, weights_like(X), torch.zeros(4, 5, device="meta"), backend="reference")


@pytest.mark.parametrize(("value", "message"), BAD_ARRAYS, ids=[message for _, message in BAD_ARRAYS])
@pytest.mark.parametrize("argument", ["x", "cotangent", "tangent", "up"])
def test_what_is_not_float_is_refused_by_name(value: Any, message: str, argument: str) -> None:
    weights = weights_like(X)
    calls: dict[str, Callable[[], object]] = {
        "x": lambda: dg.forward(BLOCK, weights, value, backend="reference"),
        "cotangent": lambda: dg.vjp(BLOCK, weights, X, value, backend="reference"),
        "tangent": lambda: dg.jvp(BLOCK, weights, X, value, backend="reference"),
        "up": lambda: dg.Weights(value),
    }
    with pytest.raises(TypeError, match=argument) as caught:
        calls[argument]()
    if message != "x":
        assert message in str(caught.value)


def test_dtypes_never_mix() -> None:
    weights = weights_like(X)
    single = X.astype(np.float32)
    with pytest.raises(TypeError, match=r"x is float32 but weights is float64.*x\.astype\(np\.float64\)"):
        dg.forward(BLOCK, weights, single, backend="reference")
    with pytest.raises(TypeError, match="cotangent is float32"):
        dg.vjp(BLOCK, weights, X, single, backend="reference")
    with pytest.raises(TypeError, match="tangent is float32"):
        dg.jvp(BLOCK, weights, X, single, backend="reference")


def test_wrong_shapes_say_what_they_should_be() -> None:
    weights = weights_like(X)
    with pytest.raises(
        ValueError, match=r"x must have shape \(\.\.\., B, 5\); got \(5,\); give one example as one row"
    ):
        dg.forward(BLOCK, weights, X[0], backend="reference")
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., B, 5\); got \(5, 4\)"):
        dg.forward(BLOCK, weights, X.T, backend="reference")
    with pytest.raises(ValueError, match="x must have shape"):
        dg.forward(BLOCK, weights, 1.0, backend="reference")
    with pytest.raises(ValueError, match=r"x must .*nested lists of equal lengths"):
        dg.forward(BLOCK, weights, [[1.0], [1.0, 2.0]], backend="reference")
    for name, call in (("cotangent", dg.vjp), ("tangent", dg.jvp)):
        for bad in (X[:3], X[:1], X[:, :4]):
            with pytest.raises(ValueError, match=f"{name} must have shape"):
                call(BLOCK, weights, X, bad, backend="reference")


def test_a_vector_alone_is_called_by_its_own_name() -> None:
    weights = weights_like(X)
    for name, call in (("cotangent", dg.vjp), ("tangent", dg.jvp)):
        with pytest.raises(ValueError, match=rf"^{name} must have shape .* as one row, {name}\[None\]$"):
            call(BLOCK, weights, X, X[0], backend="reference")
        with pytest.raises(ValueError, match=r"^fwd_or_x must have shape .* as one row, fwd_or_x\[None\]$"):
            call(BLOCK, weights, X[0], X, backend="reference")


@pytest.mark.parametrize("call", [dg.vjp, dg.jvp])
def test_what_is_neither_forward_nor_array_is_told_what_is_welcome(call: Callable[..., object]) -> None:
    weights = weights_like(X)
    for other in (dg.vjp(BLOCK, weights, X, X, backend="reference"), weights, BLOCK, None, "x", {"x": X}, len):
        with pytest.raises(TypeError, match=r"^fwd_or_x must be a Forward or an input array; got "):
            call(BLOCK, weights, other, X, backend="reference")
    with pytest.raises(TypeError, match=r"^fwd_or_x is float32"):
        call(BLOCK, weights, X.astype(np.float32), X, backend="reference")


def test_replicates_must_broadcast() -> None:
    weights = dg.initialize(BLOCK, 2, 5, rng=[1, 2, 3])
    with pytest.raises(ValueError, match=r"axes of x, \(2,\), do not broadcast with those of the weights, \(3,\)"):
        dg.forward(BLOCK, weights, np.stack([X, X]), backend="reference")
    with pytest.raises(ValueError, match="cotangent must have shape"):
        dg.vjp(BLOCK, weights, X, np.stack([X, X]), backend="reference")


def test_weights_must_fit_the_block() -> None:
    square = np.zeros((2, 5, 5))
    with pytest.raises(ValueError, match="branch='mlp' needs weights with down"):
        dg.forward(BLOCK, dg.Weights(square), X, backend="reference")
    with pytest.raises(ValueError, match="branch='gated' needs weights with gate"):
        dg.forward(dg.Block(branch="gated"), dg.Weights(square, square), X, backend="reference")
    with pytest.raises(ValueError, match="branch='linear' has no use for the weights' b_down, down"):
        dg.forward(
            dg.Block(branch="linear"), dg.Weights(square, square, b_down=square[:, 0]), X[:2], backend="reference"
        )
    with pytest.raises(ValueError, match=r"up must have shape \(\.\.\., L, d, d\)"):
        dg.forward(dg.Block(branch="linear"), dg.Weights(np.zeros((2, 5, 4))), X, backend="reference")
    with pytest.raises(ValueError, match="branch_scale has 3 values, but the weights have 2 layers"):
        dg.forward(dg.Block(branch_scale=[1, 2, 3]), dg.Weights(square, square), X, backend="reference")
    with pytest.raises(TypeError, match="block must be a Block; got str"):
        dg.forward("mlp", dg.Weights(square, square), X, backend="reference")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weights must be a Weights"):
        dg.forward(BLOCK, square, X, backend="reference")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"keep": "all"}, ValueError, "keep='all' is unknown"),
        ({"keep": True}, TypeError, "keep must be a string"),
        ({"quantiles": [1.5]}, ValueError, "quantiles must lie in"),
        ({"quantiles": [float("nan")]}, ValueError, r"quantiles\[0\]"),
        ({"quantiles": "median"}, TypeError, "quantiles"),
        ({"cosine": 1}, TypeError, "cosine must be True or False"),
        ({"threads": 0}, ValueError, "threads=0 must be an integer >= 1"),
        ({"threads": 1.0}, TypeError, "threads must be an integer"),
        ({"threads": True}, TypeError, "threads must be an integer"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not a backend; choose one of native, reference"),
    ],
)
def test_options_are_checked(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        dg.forward(BLOCK, weights_like(X), X, **({"backend": "reference"} | options))


@pytest.mark.parametrize("value", ["all", 1, None])
def test_weight_grads_is_checked(value: Any) -> None:
    with pytest.raises(ValueError, match=r'weight_grads=.* must be False, True or "rms"'):
        dg.vjp(BLOCK, weights_like(X), X, X, weight_grads=value, backend="reference")


def test_threads_default_to_the_cpus_and_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEPTHGAUGE_NUM_THREADS", raising=False)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert arguments.thread_count(None) == cpus
    assert arguments.thread_count(10**6) == cpus
    assert arguments.thread_count(np.int32(1)) == 1


def test_the_environment_sets_the_threads_and_their_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")
    assert arguments.thread_count(None) == 7
    assert arguments.thread_count(3) == 3
    assert arguments.thread_count(8) == 7
    for bad in ("0", "-1", "two", "1.5", "3000000000", "9" * 5000):
        monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", bad)
        with pytest.raises(ValueError, match=f"DEPTHGAUGE_NUM_THREADS='{bad}'"):
            dg.forward(BLOCK, weights_like(X), X, backend="reference")


def test_the_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPTHGAUGE_BACKEND", "reference")
    assert dg.forward(BLOCK, weights_like(X), X).backend == "reference"
    monkeypatch.setenv("DEPTHGAUGE_BACKEND", "cuda")
    with pytest.raises(ValueError, match="DEPTHGAUGE_BACKEND='cuda'"):
        dg.forward(BLOCK, weights_like(X), X)
