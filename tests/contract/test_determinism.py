"""The native backend's bits depend on neither threads nor batch nor neighbors, in blocks and widths of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import arrays_of, assert_same_bits, random_problem

import depthgauge as dg
from depthgauge.equation import ACTIVATIONS, BRANCHES

pytest.importorskip("depthgauge._core")

THREADS = (1, 2, 3, 7)


@pytest.fixture(autouse=True)
def seven_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow more threads than the machine may have CPUs."""
    monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", "7")


def cases() -> list[dg.Block]:
    norms = [("rms", "none", "none"), ("layer", "rms", "none"), ("none", "dyt", "layer"), ("none", "none", "none")]
    found = []
    for index, branch in enumerate(BRANCHES * 3):
        pre, output, post = norms[index % len(norms)]
        activation = ACTIVATIONS[index]
        found.append(dg.Block(branch=branch, activation=activation, pre_norm=pre, output_norm=output, post_norm=post))
    return found


CASES = pytest.mark.parametrize("block", cases(), ids=lambda block: f"{block.branch}-{block.activation}")


@CASES
def test_an_example_is_the_same_alone(block: dg.Block, dtype: np.dtype[Any]) -> None:
    p = random_problem(np.random.default_rng(1), block, 3, 19, 23, 35, dtype)
    fwd = dg.forward(block, p.weights, p.x, backend="native")
    bwd = dg.vjp(block, p.weights, fwd, p.vector)
    tan = dg.jvp(block, p.weights, fwd, p.vector)
    for i in range(35):
        one = slice(i, i + 1)
        alone = dg.forward(block, p.weights, p.x[one], backend="native", threads=1)
        assert_same_bits(fwd.output[i], alone.output[0], f"example {i}")
        assert_same_bits(fwd.states[:, i], alone.states[:, 0], f"example {i}")
        pulled = dg.vjp(block, p.weights, alone, p.vector[one], threads=1)
        assert_same_bits(bwd.input_gradient[i], pulled.input_gradient[0], f"example {i}")
        pushed = dg.jvp(block, p.weights, alone, p.vector[one], threads=1)
        assert_same_bits(tan.output[i], pushed.output[0], f"example {i}")


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_small_batches_have_the_bits_of_large_ones(branch: str, count: int, dtype: np.dtype[Any]) -> None:
    """Widths beside those of vectors, and more hidden units than a tile has."""
    plain = dg.Block(branch=branch)
    normed = plain.replace(activation="tanh", weight_scale=0.7, pre_norm="layer", output_norm="rms", post_norm="dyt")
    for width, hidden in ((1, 3), (7, 1), (8, 17), (15, 16), (33, 31), (5, 1030), (1030, 5), (96, 2048)):
        for block in (plain, normed):
            p = random_problem(np.random.default_rng(width), block, 2, width, hidden, 19, dtype)
            fwd = dg.forward(block, p.weights, p.x, backend="native")
            tan = dg.jvp(block, p.weights, fwd, p.vector)
            some = slice(6, 6 + count)
            alone = dg.forward(block, p.weights, p.x[some], backend="native")
            pushed = dg.jvp(block, p.weights, alone, p.vector[some])
            pulled = dg.vjp(block, p.weights, alone, p.vector[some])
            assert_same_bits(alone.states, fwd.states[:, some], f"{width}, {hidden}")
            assert_same_bits(pushed.output, tan.output[some], f"{width}, {hidden}")
            whole = dg.vjp(block, p.weights, fwd, p.vector)
            assert_same_bits(pulled.input_gradient, whole.input_gradient[some], f"{width}, {hidden}")


@CASES
def test_every_result_is_the_same_on_any_number_of_threads(block: dg.Block, dtype: np.dtype[Any]) -> None:
    p = random_problem(np.random.default_rng(2), block, 3, 19, 23, 35, dtype, replicates=(3,))
    results: list[dict[str, Any]] = []
    for threads in (*THREADS, 1):
        options: dict[str, Any] = {"quantiles": [0.1, 0.9], "threads": threads}
        fwd = dg.forward(block, p.weights, p.x, backend="native", cosine=True, **options)
        found = arrays_of(fwd) | {"states": fwd.states}
        for key, grads in (("all", True), ("rms", "rms"), ("none", False)):
            bwd = dg.vjp(block, p.weights, fwd, p.vector, weight_grads=grads, **options)  # type: ignore[arg-type]
            found |= {f"vjp {key} {name}": array for name, array in arrays_of(bwd).items()}
        tan = dg.jvp(block, p.weights, fwd, p.vector, threads=threads)
        results.append(found | {f"jvp {name}": array for name, array in arrays_of(tan).items()})
    for other in results[1:]:
        for name, array in results[0].items():
            assert_same_bits(other[name], array, name)


@CASES
def test_neighbors_that_are_not_finite_change_no_bit(block: dg.Block, dtype: np.dtype[Any]) -> None:
    p = random_problem(np.random.default_rng(3), block, 3, 19, 23, 33, dtype)
    clean = dg.forward(block, p.weights, p.x, backend="native")
    pulled = dg.vjp(block, p.weights, clean, p.vector)
    for value in (np.nan, np.inf, np.finfo(dtype).max):
        x, g = p.x.copy(), p.vector.copy()
        x[[3, 17, 32]] = value
        g[[3, 17, 32]] = value
        fwd = dg.forward(block, p.weights, x, backend="native")
        others = np.setdiff1d(np.arange(33), [3, 17, 32])
        assert_same_bits(fwd.output[others], clean.output[others], str(value))
        got = dg.vjp(block, p.weights, fwd, g)
        assert_same_bits(got.input_gradient[others], pulled.input_gradient[others], str(value))


def test_a_probe_is_the_same_alone(dtype: np.dtype[Any]) -> None:
    p = random_problem(np.random.default_rng(4), dg.Block(post_norm="layer"), 3, 19, 23, 9, dtype, replicates=(3,))
    fwd = dg.forward(p.block, p.weights, p.x, backend="native")
    probes = np.stack([p.vector, p.vector[::-1], -p.vector])
    bwd, tan = dg.vjp(p.block, p.weights, fwd, probes), dg.jvp(p.block, p.weights, fwd, probes)
    for k in range(3):
        pulled, pushed = dg.vjp(p.block, p.weights, fwd, probes[k]), dg.jvp(p.block, p.weights, fwd, probes[k])
        assert_same_bits(bwd.input_gradient[k], pulled.input_gradient)
        assert_same_bits(bwd.rms[k], pulled.rms)
        assert_same_bits(tan.output[k], pushed.output)
        assert_same_bits(tan.rms[k], pushed.rms)
