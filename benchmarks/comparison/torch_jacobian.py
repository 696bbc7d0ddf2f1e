"""Jacobians in torch: `vmap(jacrev)`, and chains written by hand that push the Jacobian forward."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from comparison.problems import EPS, Array, Problem

torch: Any = importlib.import_module("torch")

# Of the hidden tangents of a chunk of examples, so few that they stay in the caches.
CHUNK_BYTES = 2**20


class TorchJacrev:
    """`vmap(jacrev(net))`, the whole batch or a few examples at a time."""

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        stack = list(zip(torch.from_numpy(problem.up), torch.from_numpy(problem.down), strict=True))
        activate = torch.relu if problem.activation == "relu" else torch.nn.functional.gelu
        scale = problem.branch_scale

        def net(state: Any) -> Any:
            for up, down in stack:
                u = state * (state.square().mean() + EPS).rsqrt()
                state = state + scale * (activate(u @ up) @ down)
            return state

        x = torch.from_numpy(problem.x)
        jacobian = torch.func.jacrev(net)
        self.steps: dict[str, Callable[[], Any]] = {
            f"{text} at a time, threads {threads}": partial(
                _with_threads, threads, torch.func.vmap(jacobian, chunk_size=chunk), x
            )
            for threads in range(1, problem.threads + 1)
            for text, chunk in _chunks(problem).items()
        }

    def arrays(self, result: Any) -> Array:
        return np.asarray(result)


class TorchChain:
    """The Jacobian carried forward a layer at a time, as torch does it best.

    A Jacobian is kept as its transpose, a tangent a row, so that the examples share one
    product with the weights; or else each example has its own, by weights that take in
    norm and slopes, without the rows of its dead units, and threads take examples.
    """

    compile_seconds: float | None = None

    def __init__(self, problem: Problem) -> None:
        self._up, self._down = torch.from_numpy(problem.up), torch.from_numpy(problem.down)
        # Rows of units, so that live ones are gathered fast.
        self._turned_up = self._up.mT.contiguous()
        self._scale = problem.branch_scale
        self._relu = problem.activation == "relu"
        x = torch.from_numpy(problem.x)
        self.steps: dict[str, Callable[[], Any]] = {}
        for threads in range(1, problem.threads + 1):
            for text, chunk in _chunks(problem).items():
                self.steps[f"{text} at a time, threads {threads}"] = partial(
                    _with_threads, threads, self._chunked, x, chunk
                )
            self.steps[f"each alone, threads {threads}"] = partial(_with_threads, 1, self._pooled, x, threads)

    def arrays(self, result: Any) -> Array:
        return np.asarray(result)

    def _chunked(self, x: Any, chunk: int) -> Any:
        tangents = torch.empty((*x.shape, x.shape[1]), dtype=x.dtype)
        for states, out in zip(x.split(chunk), tangents.split(chunk), strict=True):
            self._together(states, out)
        return tangents.mT

    def _pooled(self, x: Any, threads: int) -> Any:
        tangents = torch.empty((*x.shape, x.shape[1]), dtype=x.dtype)
        if threads == 1:
            self._apart(x, tangents)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(self._apart, x.tensor_split(threads), tangents.tensor_split(threads)))
        return tangents.mT

    def _layer(self, state: Any, layer: int) -> tuple[Any, Any, Any, Any]:
        """Return the normed state, the reciprocal of its root, the slopes, and the next state."""
        inverse_root = state.square().mean(1, keepdim=True).add_(EPS).rsqrt_()
        u = state * inverse_root
        z = u @ self._up[layer]
        if self._relu:
            value, slope = z.relu(), z > 0
        else:
            value, slope = torch.nn.functional.gelu(z), torch.ops.aten.gelu_backward(torch.ones_like(z), z)
        return u, inverse_root, slope, torch.addmm(state, value, self._down[layer], alpha=self._scale)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _together(self, state: Any, tangents: Any) -> None:
        width, hidden = self._up.shape[1:]
        tangents.copy_(torch.eye(width, dtype=tangents.dtype))
        rows = tangents.view(-1, width)
        normed = torch.empty_like(tangents)
        units = torch.empty((*tangents.shape[:2], hidden), dtype=tangents.dtype)
        for layer in range(len(self._up)):
            u, inverse_root, slope, state = self._layer(state, layer)
            torch.addcmul(tangents, torch.bmm(tangents, u.unsqueeze(2)), u.unsqueeze(1), value=-1 / width, out=normed)
            torch.mm(normed.view(-1, width), self._up[layer], out=units.view(-1, hidden))
            units.mul_((slope * inverse_root).unsqueeze(1))
            rows.addmm_(units.view(-1, hidden), self._down[layer], alpha=self._scale)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _apart(self, state: Any, tangents: Any) -> None:
        width = self._up.shape[1]
        tangents.copy_(torch.eye(width, dtype=tangents.dtype))
        for layer in range(len(self._up)):
            turned_up, down = self._turned_up[layer], self._down[layer]
            u, inverse_root, slope, state = self._layer(state, layer)
            scales = (self._scale * inverse_root).flatten().tolist()
            for example, scale in enumerate(scales):
                if self._relu:
                    live = slope[example].nonzero().flatten()
                    first, second = turned_up.index_select(0, live), down.index_select(0, live)
                else:
                    first, second = turned_up * slope[example].unsqueeze(1), down
                first.addr_(torch.mv(first, u[example]), u[example], alpha=-1 / width)
                tangents[example].addmm_(tangents[example] @ first.mT, second, alpha=scale)


def _chunks(problem: Problem) -> dict[str, int]:
    """Return how many examples to take at a time, by what to call it."""
    _, width, hidden, batch = problem.shape
    fit = max(1, CHUNK_BYTES // (width * hidden * problem.x.itemsize))
    return {"all": batch} | ({str(fit): fit} if fit < batch else {})


def _with_threads(threads: int, step: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(threads)
    return step(*arguments)
