"""The block in NumPy, by hand: in-place operations, a tape of what reverse mode reads, SciPy's erf for GELU."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from comparison.problems import EPS, Array, Problem
from comparison.timing import fastest


class NumpyStack:
    """Forward and VJP with every large array made once; BLAS threads are set by the environment."""

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        depth, width, hidden, batch = problem.shape
        dtype = problem.x.dtype
        self._problem = problem
        # 0-d arrays would do as well; a Python float keeps float32 float32.
        self._scale = problem.branch_scale
        self._relu = problem.activation == "relu"
        self._erf: Any = None if self._relu else importlib.import_module("scipy.special").erf
        self._u = np.empty((depth, batch, width), dtype)
        self._inverse_root = np.empty((depth, batch, 1), dtype)
        self._derivative = np.empty((depth, batch, hidden), np.bool_ if self._relu else dtype)
        # Activations are kept only for weight gradients; until then all layers share one buffer.
        self._value = np.empty((1, batch, hidden), dtype)
        self._wide = np.empty((batch, hidden), dtype)
        self._scratch = np.empty((batch, hidden), dtype)
        self._narrow = np.empty((batch, width), dtype)
        self._turned_down = problem.down.swapaxes(1, 2)
        self._turned_up = problem.up.swapaxes(1, 2)
        self._weight_gradients: tuple[Array, Array] | None = None
        self._choose_layout()

    def _choose_layout(self) -> None:
        """Keep transposed copies of the weights for reverse mode if that is faster than transposed views."""
        views = self._turned_up, self._turned_down
        copies = tuple(np.ascontiguousarray(view) for view in views)

        def run(layout: tuple[Array, ...]) -> object:
            self._turned_up, self._turned_down = layout
            return self.step()

        best = fastest({"views": lambda: run(views), "copies": lambda: run(copies)})
        self._turned_up, self._turned_down = views if best == "views" else copies

    def step(self) -> tuple[Array, Array]:
        return self._forward(), self._backward()

    def weight_step(self) -> tuple[Array, Array]:
        if self._weight_gradients is None:
            self._value = np.empty(self._derivative.shape, self._problem.x.dtype)
            self._forward()
            self._weight_gradients = np.empty_like(self._problem.up), np.empty_like(self._problem.down)
        self._backward()
        return self._weight_gradients

    def arrays(self, result: Any) -> tuple[Array, Array]:
        output, gradient = result
        return output, gradient

    def weight_arrays(self, result: Any) -> tuple[Array, Array]:
        up, down = result
        return up, down

    def _forward(self) -> Array:
        state = self._problem.x.copy()
        narrow = self._narrow
        for layer, (up, down) in enumerate(zip(self._problem.up, self._problem.down, strict=True)):
            inverse_root = self._inverse_root[layer]
            np.vecdot(state, state, out=inverse_root[:, 0])
            inverse_root /= state.shape[1]
            inverse_root += EPS
            np.sqrt(inverse_root, out=inverse_root)
            np.reciprocal(inverse_root, out=inverse_root)
            np.multiply(state, inverse_root, out=self._u[layer])
            value = self._value[layer % len(self._value)]
            np.matmul(self._u[layer], up, out=value)
            self._activate(value, self._derivative[layer])
            np.matmul(value, down, out=narrow)
            narrow *= self._scale
            state += narrow
        return state

    def _activate(self, z: Array, derivative: Array) -> None:
        """Replace `z` with phi(z); write the derivative."""
        if self._relu:
            np.greater(z, 0, out=derivative)
            np.maximum(z, 0, out=z)
            return
        cdf = self._scratch
        np.multiply(z, math.sqrt(0.5), out=cdf)
        self._erf(cdf, out=cdf)
        cdf += 1
        cdf *= 0.5
        np.multiply(z, z, out=derivative)
        derivative *= -0.5
        np.exp(derivative, out=derivative)
        derivative *= 1 / math.sqrt(2 * math.pi)
        derivative *= z
        derivative += cdf
        z *= cdf

    def _backward(self) -> Array:
        gradient = self._problem.cotangent.copy()
        narrow, wide = self._narrow, self._wide
        for layer in reversed(range(len(self._u))):
            u = self._u[layer]
            np.multiply(gradient, self._scale, out=narrow)
            if self._weight_gradients is not None:
                np.matmul(self._value[layer].T, narrow, out=self._weight_gradients[1][layer])
            np.matmul(narrow, self._turned_down[layer], out=wide)
            wide *= self._derivative[layer]
            if self._weight_gradients is not None:
                np.matmul(u.T, wide, out=self._weight_gradients[0][layer])
            np.matmul(wide, self._turned_up[layer], out=narrow)
            projection = np.vecdot(narrow, u)[:, None]
            projection /= u.shape[1]
            narrow -= u * projection
            narrow *= self._inverse_root[layer]
            gradient += narrow
        return gradient
