"""Errors that teach: shapes, options and scalars that are special to one function; threads and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layouts import X
from problems import Array

import depthgauge as dg
from depthgauge._common import arguments

BLOCK = dg.Block()


def weights_like(x: Array) -> dg.Weights:
    return dg.initialize(BLOCK, 2, x.shape[-1], rng=3, dtype=x.dtype.newbyteorder("="))


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
