"""Ways to compute the singular values of a stack of matrices, each with the number of threads it is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

import depthgauge as dg

Array = npt.NDArray[Any]
# Takes a number of threads; returns the singular values in an array of its own.  Threads of BLAS are limited outside.
Step = Callable[[int], Any]


def depthgauge_step(a: Array) -> Step:
    """Singular values by the default backend."""
    return lambda threads: dg.singular_values(a, threads=threads)


def numpy_step(a: Array) -> Step:
    """Singular values by LAPACK, a matrix at a time."""
    return lambda threads: np.linalg.svd(a, compute_uv=False)


def pool_step(a: Array) -> Step:
    """The same over a pool of threads; for BLAS held to one."""

    def run(threads: int) -> list[Array]:
        parts = np.array_split(a, min(len(a), 8 * threads))
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda part: np.linalg.svd(part, compute_uv=False), parts))

    return run


def torch_step(a: Array) -> Step:
    """Singular values by torch, on the CPU."""
    torch: Any = importlib.import_module("torch")
    tensor = torch.from_numpy(a)

    def run(threads: int) -> Any:
        torch.set_num_threads(threads)
        return torch.linalg.svdvals(tensor)

    return run


def jax_step(a: Array) -> Step:
    """Singular values by JAX, compiled ahead; its own pool has as many threads as the process has CPUs."""
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    matrices = jax.numpy.asarray(a)
    compiled = jax.jit(jax.numpy.linalg.svdvals).lower(matrices).compile()
    return lambda threads: jax.block_until_ready(compiled(matrices))


PEERS: dict[str, Callable[[Array], Step]] = {"NumPy": numpy_step, "torch": torch_step, "JAX": jax_step}
