"""The block in JAX: one jitted function, the stack a `lax.scan`, reverse mode by `jax.vjp`."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from comparison.problems import EPS, Array, Problem

jax: Any = importlib.import_module("jax")
jax.config.update("jax_enable_x64", True)
jnp: Any = jax.numpy


class JaxStack:
    """Forward and VJP, compiled ahead; the number of threads is set by the environment."""

    def __init__(self, problem: Problem) -> None:
        self._weights = jnp.asarray(problem.up), jnp.asarray(problem.down)
        self._x, self._cotangent = jnp.asarray(problem.x), jnp.asarray(problem.cotangent)
        scale = problem.branch_scale
        relu = problem.activation == "relu"

        def layer(state: Any, weights: Any) -> Any:
            up, down = weights
            u = state * jax.lax.rsqrt(jnp.mean(state * state, axis=1, keepdims=True) + EPS)
            z = u @ up
            value = jax.nn.relu(z) if relu else jax.nn.gelu(z, approximate=False)
            return state + scale * (value @ down), None

        def stack(weights: Any, x: Any) -> Any:
            return jax.lax.scan(layer, x, weights)[0]

        def forward_and_vjp(weights: Any, x: Any, cotangent: Any) -> Any:
            output, pull = jax.vjp(lambda start: stack(weights, start), x)
            return output, pull(cotangent)[0]

        begin = time.perf_counter()
        self._step = jax.jit(forward_and_vjp).lower(self._weights, self._x, self._cotangent).compile()
        self.compile_seconds: float | None = time.perf_counter() - begin
        self._stack = stack
        self._pull: Any = None

    def step(self) -> Any:
        return jax.block_until_ready(self._step(self._weights, self._x, self._cotangent))

    def weight_step(self) -> Any:
        if self._pull is None:
            # The pullback is data, so the forward can be run once and only the VJP be timed.
            _, pull = jax.jit(lambda weights, x: jax.vjp(self._stack, weights, x))(self._weights, self._x)
            compiled = jax.jit(lambda pullback, cotangent: pullback(cotangent)).lower(pull, self._cotangent).compile()
            self._pull = lambda: compiled(pull, self._cotangent)
        return jax.block_until_ready(self._pull())

    def arrays(self, result: Any) -> tuple[Array, Array]:
        output, gradient = (np.asarray(array) for array in result)
        return output, gradient

    def weight_arrays(self, result: Any) -> tuple[Array, Array]:
        (up, down), _ = result
        return np.asarray(up), np.asarray(down)
