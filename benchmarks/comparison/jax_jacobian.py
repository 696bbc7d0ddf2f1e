"""Jacobians in JAX: `vmap(jacfwd)` of a `lax.scan`, jitted."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from comparison.problems import EPS, Array, Problem

jax: Any = importlib.import_module("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
jnp: Any = jax.numpy


class JaxJacobian:
    """Jacobians compiled ahead; JAX takes a thread for each CPU it finds, and cannot be told otherwise."""

    def __init__(self, problem: Problem) -> None:
        weights = jnp.asarray(problem.up), jnp.asarray(problem.down)
        x = jnp.asarray(problem.x)
        scale = problem.branch_scale
        relu = problem.activation == "relu"

        def layer(state: Any, weights: Any) -> Any:
            up, down = weights
            u = state * jax.lax.rsqrt(jnp.mean(state * state) + EPS)
            z = u @ up
            value = jax.nn.relu(z) if relu else jax.nn.gelu(z, approximate=False)
            return state + scale * (value @ down), None

        def net(x: Any, weights: Any) -> Any:
            return jax.lax.scan(layer, x, weights)[0]

        begin = time.perf_counter()
        compiled = jax.jit(jax.vmap(jax.jacfwd(net), in_axes=(0, None))).lower(x, weights).compile()
        self.compile_seconds: float | None = time.perf_counter() - begin
        self.steps: dict[str, Callable[[], Any]] = {
            f"threads {problem.threads}": lambda: jax.block_until_ready(compiled(x, weights))
        }

    def arrays(self, result: Any) -> Array:
        return np.asarray(result)
