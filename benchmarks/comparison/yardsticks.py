"""What the machine can do at most, to be timed in the same turns as the contenders.

A virtual CPU is often one of two threads of a core: what it can do changes with what the other one does, by a third
and for minutes.  So a peak counts only beside times that were taken when it was.
"""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from comparison.timing import fastest

MATRIX = 768


@dataclass(frozen=True)
class Yardstick:
    """Work without a contender: `step` does `flops` of it."""

    step: Callable[[], object]
    flops: float

    def gflops(self, seconds: Sequence[float]) -> float:
        """Return GF/s at the median of `seconds`."""
        return self.flops / statistics.median(seconds) / 1e9


def multiply_adds(dtype: str, threads: int) -> Yardstick:
    """Return bare fused multiply-adds in registers."""
    core: Any = importlib.import_module("depthgauge._core")
    step = functools.partial(core.multiply_adds, dtype == "float32", threads)
    return Yardstick(step, float(step()))


def matrix_product(dtype: str, threads: int) -> Yardstick:
    """Return a matrix product by NumPy's BLAS, or by torch's where it is installed and faster."""
    a = np.random.default_rng(0).standard_normal((MATRIX, MATRIX)).astype(dtype)
    products: dict[str, Callable[[], object]] = {"NumPy": lambda: a @ a}
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        pass
    else:
        torch.set_num_threads(threads)
        tensor = torch.from_numpy(a)
        products["torch"] = lambda: tensor @ tensor
    return Yardstick(products[fastest(products)], 2.0 * MATRIX**3)


def both(dtype: str, threads: int) -> dict[str, Yardstick]:
    """Return both, by the names "fma" and "gemm"."""
    return {"fma": multiply_adds(dtype, threads), "gemm": matrix_product(dtype, threads)}


def peaks(sticks: Mapping[str, Yardstick], times: Mapping[Any, Sequence[float]]) -> dict[str, float]:
    """Return GF/s of each yardstick, whose seconds are in `times` under ("peak", its name)."""
    return {name: stick.gflops(times["peak", name]) for name, stick in sticks.items()}


def steps(sticks: Mapping[str, Yardstick]) -> dict[tuple[str, str], Callable[[], object]]:
    """Return the yardsticks as steps to be timed with those of the contenders."""
    return {("peak", name): stick.step for name, stick in sticks.items()}
