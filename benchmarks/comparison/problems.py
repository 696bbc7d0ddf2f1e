"""What is timed: one stack, one input, one cotangent, the same for every contender; and what is true of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg

Array = npt.NDArray[Any]

EPS = 1e-6
SHAPES = ((96, 64, 64, 128), (48, 256, 256, 128), (48, 256, 1024, 128), (12, 512, 2048, 64))


@dataclass(frozen=True, eq=False)
class Problem:
    """A residual stack, h + branch_scale * (phi(rms_norm(h) @ up) @ down), with what goes through it.

    Attributes
    ----------
    up, down : numpy.ndarray
        Weights of shapes (L, d, m) and (L, m, d).
    x, cotangent : numpy.ndarray
        What goes forward and back, shape (B, d).
    activation : {"relu", "gelu"}
        phi; gelu is the exact one.
    threads : int
        What a contender may use.
    """

    up: Array
    down: Array
    x: Array
    cotangent: Array
    activation: str
    threads: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """L, d, m and B."""
        depth, width, hidden = self.up.shape
        return depth, width, hidden, len(self.x)

    @property
    def branch_scale(self) -> float:
        """1 / sqrt(L)."""
        return 1.0 / math.sqrt(len(self.up))

    @property
    def block(self) -> dg.Block:
        """The block equation, for depthgauge."""
        return dg.Block(activation=self.activation, pre_norm="rms", branch_scale=self.branch_scale, eps=EPS)

    @property
    def flops(self) -> int:
        """Flops of the products of forward and state VJP; also of a VJP that takes weight gradients, alone."""
        depth, width, hidden, batch = self.shape
        return 8 * depth * batch * width * hidden


def make_problem(
    shape: tuple[int, int, int, int], dtype: str, activation: str, threads: int, *, init: str = "he"
) -> Problem:
    """Draw a problem of shape (L, d, m, B): weights by `init`, standard normal input and cotangent."""
    depth, width, hidden, batch = shape
    rng = np.random.default_rng(shape)
    block = dg.Block(activation=activation, pre_norm="rms", branch_scale=1.0 / math.sqrt(depth), eps=EPS)
    weights = dg.initialize(block, depth, width, hidden, init=init, rng=rng, dtype=np.dtype(dtype))
    x = rng.standard_normal((batch, width)).astype(dtype)
    cotangent = rng.standard_normal((batch, width)).astype(dtype)
    arrays = dict(weights.items())
    return Problem(arrays["up"], arrays["down"], x, cotangent, activation, threads)


def reference(problem: Problem) -> tuple[Array, Array, slice]:
    """Return output and input gradient in higher precision, and the examples they are of.

    float32 problems are computed in float64, whole.  float64 problems are computed in
    `numpy.longdouble`, which no BLAS speeds up, so for the first two examples alone;
    examples do not couple.
    """
    single = problem.x.dtype == np.float32
    wide: np.dtype[Any] = np.dtype(np.float64 if single else np.longdouble)
    examples = slice(None) if single else slice(0, 2)
    scale = 1 / np.sqrt(wide.type(len(problem.up)))
    state = problem.x[examples].astype(wide)
    tape = []
    for up, down in zip(problem.up, problem.down, strict=True):
        root = np.sqrt(np.mean(state * state, axis=1, keepdims=True) + wide.type(EPS))
        u = state / root
        value, derivative = activate(u @ up.astype(wide), problem.activation)
        tape.append((u, root, derivative))
        state = state + scale * (value @ down.astype(wide))
    gradient = problem.cotangent[examples].astype(wide)
    for up, down, (u, root, derivative) in zip(problem.up[::-1], problem.down[::-1], tape[::-1], strict=True):
        through = (derivative * (scale * gradient @ down.astype(wide).T)) @ up.astype(wide).T
        gradient = gradient + (through - u * np.mean(through * u, axis=1, keepdims=True)) / root
    return state, gradient, examples


def relative_error(result: tuple[Array, Array], truth: tuple[Array, Array, slice]) -> float:
    """Return the larger error of output and input gradient, in norm, relative to the norm of the truth."""
    *expected, examples = truth
    return max(
        float(np.linalg.norm((got[examples] - want).astype(np.float64)) / np.linalg.norm(want.astype(np.float64)))
        for got, want in zip(result, expected, strict=True)
    )


def activate(z: Array, activation: str) -> tuple[Array, Array]:
    """Return value and derivative of an activation, in the precision of `z`."""
    if activation == "relu":
        return np.maximum(z, 0), (z > 0).astype(z.dtype)
    pi = 4 * np.arctan(z.dtype.type(1))
    density = np.exp(-z * z / 2) / np.sqrt(2 * pi)
    cdf = (1 + np.sign(z) * 2 * density * _series(np.abs(z))) / 2
    return z * cdf, cdf + z * density


def _series(t: Array) -> Array:
    """Return (cdf(t) - 1/2) / density(t) = t + t^3/3 + t^5/(3·5) + ..., for any precision; every term is positive."""
    term = t.copy()
    total = t.copy()
    odd = 1
    while np.any(term > np.finfo(t.dtype).eps * total):
        odd += 2
        term = term * (t * t / odd)
        total += term
    return total
