"""Blocks, weights and inputs to test with, and how to compare results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

MATRICES = {"linear": ("up",), "mlp": ("up", "down"), "gated": ("up", "gate", "down")}
BIASES = {"linear": ("b_up",), "mlp": ("b_up", "b_down"), "gated": ("b_up", "b_down", "b_gate")}
GAINS = ("pre_gain", "output_gain", "post_gain")
SHIFTS = ("pre_shift", "output_shift", "post_shift")


def effective_rank(values: Array) -> float:
    """Return the exponential of the entropy of singular values, by the definition."""
    p = values[values > 0] / np.sum(values)
    return float(np.exp(-np.sum(p * np.log(p))))


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything `forward`, `vjp` and `jvp` take."""

    block: dg.Block
    weights: dg.Weights
    x: Array
    vector: Array  # a cotangent or tangent, shape of the output


def random_weights(
    rng: np.random.Generator,
    block: dg.Block,
    depth: int,
    width: int,
    hidden: int,
    dtype: npt.DTypeLike = np.float64,
    *,
    replicates: Shape = (),
    vectors: bool = True,
) -> dg.Weights:
    """Return well-scaled random weights; with `vectors` they have every bias, gain and shift."""
    shapes: dict[str, Shape] = {"up": (width, hidden), "gate": (width, hidden), "down": (hidden, width)}
    shapes |= {"b_up": (hidden,), "b_gate": (hidden,), "b_down": (width,)}
    shapes |= {name: (width,) for name in GAINS + SHIFTS}
    names = MATRICES[block.branch] + (BIASES[block.branch] + GAINS + SHIFTS if vectors else ())
    fields: dict[str, Any] = {}
    for name in names:
        draw = rng.standard_normal((*replicates, depth, *shapes[name]))
        if name in MATRICES["gated"]:
            draw /= np.sqrt(max(shapes[name][0], 1))
        else:
            draw = 0.2 * draw + (name in GAINS)
        fields[name] = draw.astype(dtype)
    return dg.Weights(**fields)


def random_problem(
    rng: np.random.Generator,
    block: dg.Block,
    depth: int = 3,
    width: int = 5,
    hidden: int = 7,
    batch: int = 4,
    dtype: npt.DTypeLike = np.float64,
    *,
    replicates: Shape = (),
    vectors: bool = True,
) -> Problem:
    """Return a problem of the given sizes; a linear branch has `width` hidden units."""
    hidden = width if block.branch == "linear" else hidden
    weights = random_weights(rng, block, depth, width, hidden, dtype, replicates=replicates, vectors=vectors)
    shape = (*replicates, batch, width)
    return Problem(block, weights, rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape).astype(dtype))


def empty_problems(block: dg.Block) -> Iterator[Problem]:
    """Yield problems in which one axis or another is empty."""
    for depth, width, hidden, batch, replicates in [
        (0, 4, 4, 2, ()),
        (2, 0, 0, 2, ()),
        (2, 4, 0, 2, ()),
        (2, 4, 5, 0, ()),
        (2, 4, 5, 2, (0,)),
    ]:
        rng = np.random.default_rng(0)
        yield random_problem(rng, block, depth, width, hidden, batch, replicates=replicates, vectors=False)


def largest(a: Array) -> float:
    """Return the largest finite magnitude, 0 of nothing."""
    return float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))


def assert_close(got: Array, want: Array, tolerance: float, scale: float | None = None, what: str = "") -> None:
    """Compare arrays; errors count relative to `scale`, by default the largest magnitude wanted."""
    assert got.shape == want.shape, what
    assert got.dtype == want.dtype, what
    finite = np.isfinite(want)
    if not (np.all(finite) and np.all(np.isfinite(got))):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
        np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(want), want, 0), err_msg=what)
    error = largest(np.asarray(got[finite], np.float64) - np.asarray(want[finite], np.float64))
    limit = tolerance * (largest(want) if scale is None else scale)
    assert error <= limit, f"{what}: error {error:.3g} exceeds {limit:.3g}"


def arrays_of(result: dg.Forward | dg.Backward | dg.Tangent) -> dict[str, Array]:
    """Return all arrays of a result by name, weight gradients among them."""
    found = {}
    for name, value in result.to_dict().items():
        parts = value if isinstance(value, dict) else {"": value}
        found.update({f"{name}.{part}": array for part, array in parts.items() if isinstance(array, np.ndarray)})
    return found


def assert_same_bits(got: Array, want: Array, what: str = "") -> None:
    """Compare arrays bit for bit; any NaN equals any other."""
    assert got.shape == want.shape, what
    assert got.dtype == want.dtype, what
    if got.tobytes() == want.tobytes():
        return
    np.testing.assert_array_equal(got, want, err_msg=what)
    np.testing.assert_array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want), err_msg=what)
