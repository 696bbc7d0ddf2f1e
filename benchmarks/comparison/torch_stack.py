"""The block in torch, eager and in inference mode: reverse mode by hand, with torch's own fused derivative kernels."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from comparison.problems import EPS, Array, Problem
from comparison.timing import fastest

torch: Any = importlib.import_module("torch")


class TorchStack:
    """Forward and VJP as products with `torch.mm` and `torch.addmm` and as few passes between them as eager allows."""

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        torch.set_num_threads(problem.threads)
        depth, _, hidden, batch = problem.shape
        self._x, self._cotangent = torch.from_numpy(problem.x), torch.from_numpy(problem.cotangent)
        self._up, self._down = torch.from_numpy(problem.up), torch.from_numpy(problem.down)
        self._scale = problem.branch_scale
        self._relu = problem.activation == "relu"
        # Of ReLU the value is kept, of GELU its argument: what the derivative kernels read.
        self._kept = torch.empty((depth, batch, hidden), dtype=self._x.dtype)
        self._turned_up, self._turned_down = self._up.mT, self._down.mT
        self._tape: list[tuple[Any, Any]] = []
        self._weight_gradients: tuple[Any, Any] | None = None
        self._choose_layout()

    def _choose_layout(self) -> None:
        """Keep transposed copies of the weights for reverse mode if that is faster than transposed views."""
        views = self._turned_up, self._turned_down
        copies = tuple(view.contiguous() for view in views)

        def run(layout: tuple[Any, ...]) -> object:
            self._turned_up, self._turned_down = layout
            return self.step()

        best = fastest({"views": lambda: run(views), "copies": lambda: run(copies)})
        self._turned_up, self._turned_down = views if best == "views" else copies

    def step(self) -> tuple[Any, Any]:
        with torch.inference_mode():
            return self._forward(), self._backward()

    def weight_step(self) -> tuple[Any, Any]:
        with torch.inference_mode():
            if self._weight_gradients is None:
                self._forward()
                self._weight_gradients = torch.empty_like(self._up), torch.empty_like(self._down)
            self._backward()
        return self._weight_gradients

    def arrays(self, result: Any) -> tuple[Array, Array]:
        output, gradient = (np.asarray(tensor) for tensor in result)
        return output, gradient

    weight_arrays = arrays

    def _forward(self) -> Any:
        state = self._x
        self._tape.clear()
        for up, down, kept in zip(self._up, self._down, self._kept, strict=True):
            inverse_root = state.square().mean(1, keepdim=True).add_(EPS).rsqrt_()
            u = state * inverse_root
            torch.mm(u, up, out=kept)
            value = kept.relu_() if self._relu else torch.nn.functional.gelu(kept)
            state = torch.addmm(state, value, down, alpha=self._scale)
            self._tape.append((u, inverse_root))
        return state

    def _backward(self) -> Any:
        gradient = self._cotangent
        for layer in reversed(range(len(self._tape))):
            u, inverse_root = self._tape[layer]
            kept = self._kept[layer]
            branch = gradient * self._scale
            if self._weight_gradients is not None:
                value = kept if self._relu else torch.nn.functional.gelu(kept)
                torch.mm(value.mT, branch, out=self._weight_gradients[1][layer])
            hidden = torch.mm(branch, self._turned_down[layer])
            if self._relu:
                hidden = torch.ops.aten.threshold_backward(hidden, kept, 0)
            else:
                hidden = torch.ops.aten.gelu_backward(hidden, kept)
            if self._weight_gradients is not None:
                torch.mm(u.mT, hidden, out=self._weight_gradients[0][layer])
            through = torch.mm(hidden, self._turned_up[layer])
            projection = (through * u).mean(1, keepdim=True)
            gradient = torch.addcmul(gradient, through.addcmul_(u, projection, value=-1), inverse_root)
        return gradient
