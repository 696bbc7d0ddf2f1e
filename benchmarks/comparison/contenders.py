"""The contenders: each runs forward + state VJP of a problem, and the VJP with weight gradients alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import depthgauge as dg
from comparison.problems import Array, Problem


class Contender(Protocol):
    """One way to run a problem."""

    compile_seconds: float | None

    def step(self) -> object:
        """Run forward and state VJP; return the output and the input gradient, in the contender's own arrays."""

    def weight_step(self) -> object:
        """Run the VJP with weight gradients of a forward made before; what it returns holds them."""

    def arrays(self, result: Any) -> tuple[Array, Array]:
        """Return what `step` returned, as NumPy arrays."""

    def weight_arrays(self, result: Any) -> tuple[Array, Array]:
        """Return the gradients of up and down from what `weight_step` returned, as NumPy arrays."""


class Depthgauge:
    """The native backend, every statistic included."""

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._block = problem.block
        self._weights = dg.Weights(problem.up, problem.down)
        self._options: dict[str, Any] = {"backend": "native", "threads": problem.threads}
        self._forward: dg.Forward | None = None

    def step(self) -> tuple[Array, Array]:
        forward = dg.forward(self._block, self._weights, self._problem.x, **self._options)
        backward = dg.vjp(self._block, self._weights, forward, self._problem.cotangent, **self._options)
        return forward.output, backward.input_gradient

    def weight_step(self) -> Any:
        if self._forward is None:
            self._forward = dg.forward(self._block, self._weights, self._problem.x, keep="activations", **self._options)
        return dg.vjp(
            self._block, self._weights, self._forward, self._problem.cotangent, weight_grads=True, **self._options
        )

    def arrays(self, result: Any) -> tuple[Array, Array]:
        output, gradient = result
        return output, gradient

    def weight_arrays(self, result: Any) -> tuple[Array, Array]:
        gradients = dict(result.weights.items())
        return gradients["up"], gradients["down"]


def _numpy(problem: Problem) -> Contender:
    return _load("numpy_stack").NumpyStack(problem)  # type: ignore[no-any-return]


def _torch(problem: Problem) -> Contender:
    return _load("torch_stack").TorchStack(problem)  # type: ignore[no-any-return]


def _jax(problem: Problem) -> Contender:
    return _load("jax_stack").JaxStack(problem)  # type: ignore[no-any-return]


def _load(name: str) -> Any:
    # A peer's library is imported only when its turn comes, and may be missing.
    return importlib.import_module(f"comparison.{name}")


CONTENDERS: dict[str, Callable[[Problem], Contender]] = {
    "depthgauge": Depthgauge,
    "NumPy": _numpy,
    "torch": _torch,
    "JAX": _jax,
}
