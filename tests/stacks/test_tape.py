"""Tapes of the native backend: opaque, but they know their states, pickle, and count their bytes."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any, cast

import numpy as np
import pytest
from problems import assert_same_bits, random_problem

import depthgauge as dg

core: Any = pytest.importorskip("depthgauge._core")

BLOCKS = [
    dg.Block(),
    dg.Block(branch="gated", activation="gelu", output_norm="layer", post_norm="rms"),
    dg.Block(branch="linear", activation="tanh", pre_norm="dyt"),
]


@pytest.mark.parametrize("keep", ["states", "activations"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.branch)
def test_a_pickled_tape_is_as_good(block: dg.Block, keep: Any, dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    p = random_problem(rng, block, 3, 9, 9, 19, dtype)
    fwd = dg.forward(p.block, p.weights, p.x, keep=keep, backend="native")
    (tape,) = fwd._tape or ()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(tape, protocol=protocol))
    assert type(other) is type(tape)
    assert other.nbytes == tape.nbytes
    assert_same_bits(other.states(), tape.states())
    g = rng.standard_normal(fwd.output.shape).astype(dtype)
    for copied in (pickle.loads(pickle.dumps(fwd)), copy.deepcopy(fwd)):
        want = dg.vjp(fwd.block, fwd.weights, fwd, g, weight_grads=True)
        got = dg.vjp(copied.block, copied.weights, copied, g, weight_grads=True)
        for name, array in want.to_dict()["weights"].items():
            assert_same_bits(got.to_dict()["weights"][name], array, name)


def test_bytes_are_counted(dtype: np.dtype[Any], rng: np.random.Generator) -> None:
    """They hold the states, whose examples fill whole cache lines, and grow with depth and kept activations."""
    sizes = {}
    for depth, keep in ((2, "states"), (4, "states"), (4, "activations")):
        p = random_problem(rng, dg.Block(), depth, 9, 7, 19, dtype)
        (tape,) = dg.forward(p.block, p.weights, p.x, keep=keep, backend="native")._tape or ()  # type: ignore[arg-type]
        lanes = 64 // dtype.itemsize
        sizes[depth, keep] = tape.nbytes
        assert tape.nbytes >= (depth + 1) * -(-19 // lanes) * 64 * 9
    assert sizes[2, "states"] < sizes[4, "states"] < sizes[4, "activations"]


def test_a_tape_serves_its_own_stack_alone(rng: np.random.Generator) -> None:
    p = random_problem(rng, dg.Block(), 3, 9, 7, 19, np.dtype(np.float64))
    fwd = dg.forward(p.block, p.weights, p.x, backend="native")
    (tape,), stack = fwd._tape or (), fwd._stack
    assert stack is not None
    g = np.ones((1, 1, 19, 9))
    bound = stack.bound["native"]
    bound.vjp(tape, (1, 1), g, "none", (), "", 1)
    deeper = random_problem(rng, dg.Block(), 4, 9, 7, 19, np.dtype(np.float64))
    other = dg.forward(deeper.block, deeper.weights, deeper.x, backend="native")
    with pytest.raises(ValueError, match="the tape is of another stack"):
        bound.vjp((other._tape or ())[0], (1, 1), g, "none", (), "", 1)
    with pytest.raises(ValueError, match="only the tape of one example"):
        tape.of_copies(2)


def test_a_damaged_tape_is_refused(rng: np.random.Generator) -> None:
    p = random_problem(rng, dg.Block(), 3, 9, 7, 19, np.dtype(np.float64))
    (tape,) = dg.forward(p.block, p.weights, p.x, backend="native")._tape or ()
    restore, (state,) = cast(Any, tape).__reduce_ex__(2)
    assert_same_bits(restore(state).states(), cast(Any, tape).states())
    damage = {
        0: [10**6, -1, 2**62],
        1: [4, -1],
        2: [1, -19, 2**62],
        3: [8, 2**60],
        4: [state[4][:-1], (*state[4][:-1], -64), (2**62,) * 4 + (0,) * 6, (0,) * 10],
        5: [state[5][:-1], state[5].astype(np.int8), None],
    }
    for place, values in damage.items():
        for value in values:
            with pytest.raises((ValueError, TypeError)):
                restore(tuple(value if at == place else part for at, part in enumerate(state)))
    with pytest.raises(ValueError, match="this is no tape"):
        restore(state[:-1])


def test_indices_are_read_once(rng: np.random.Generator) -> None:
    """Whoever changes them after a stack was bound reaches nothing."""
    p = random_problem(rng, dg.Block(), 3, 9, 7, 19, np.dtype(np.float64))
    fwd = dg.forward(p.block, p.weights, p.x, backend="native")
    stack = fwd._stack
    assert stack is not None
    stack.set_of[:] = 10**9
    for parameter in stack.parameters.values():
        parameter.index_of[:] = 10**9
    bound = stack.bound["native"]
    target = os.environ.get("DEPTHGAUGE_TARGET", "")
    found, _ = bound.forward(p.x[None], np.zeros(1, np.int64), "nothing", (), False, target, 1)
    assert_same_bits(found["output"], fwd.output)
