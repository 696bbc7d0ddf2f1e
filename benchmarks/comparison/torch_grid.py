"""Effective ranks over a grid in torch: all settings of a seed in one chain, on weights that they share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from comparison.problems import EPS, Array

torch: Any = importlib.import_module("torch")

# Weights of one layer, up (d, m) and down (m, d), as tensors.
Draw = Callable[[int], tuple[Any, Any]]

# Layers between rescalings of the Jacobians, few enough that none leaves the range of float32.
RESCALE_EVERY = 8


def lecun(seed: int, width: int) -> Draw:
    """Return what draws LeCun weights of square layers in float32, one layer after the other."""
    generator = torch.Generator().manual_seed(seed)

    def draw(layer: int) -> tuple[Any, Any]:
        up, down = torch.randn((2, width, width), generator=generator).mul_(width**-0.5)
        return up, down

    return draw


def given(up: Array, down: Array) -> Draw:
    """Return what takes the weights from arrays of shapes (L, d, m) and (L, m, d)."""
    return lambda layer: (torch.from_numpy(up[layer]), torch.from_numpy(down[layer]))


def grid_ranks(scales: Sequence[float], depths: Sequence[int], seeds: Sequence[int], x: Array, threads: int) -> Array:
    """Return effective ranks (2 * len(scales), len(seeds), len(depths)), on weights of each seed."""
    torch.set_num_threads(threads)
    return np.stack([effective_ranks(lecun(seed, x.shape[1]), x, scales, depths) for seed in seeds], 1)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def effective_ranks(draw: Draw, x: Array, scales: Sequence[float], depths: Sequence[int]) -> Array:
    """Return effective ranks (2 * len(scales), len(depths)): those of the pre-norm settings, then of the post-norm.

    Blocks are h + a phi(N(h) a up) a down, and N of h + a phi(h a up) a down, with phi ReLU and N RMSNorm.
    The Jacobians are kept as transposes, a tangent a row, and without the factors that an effective rank is free of.
    """
    half, width = len(scales), x.shape[-1]
    a = torch.tensor(np.tile(scales, 2).astype(x.dtype)).unsqueeze(1)
    state = torch.from_numpy(x).repeat(2 * half, 1)
    tangents = torch.eye(width, dtype=state.dtype).repeat(2 * half, 1, 1)
    before, after = tangents[:half], tangents[half:]
    normed, units = torch.empty_like(before), torch.empty_like(tangents)
    ranks = np.empty((2 * half, len(depths)))
    for layer in range(max(depths)):
        up, down = draw(layer)
        inverse_root = _inverse_root(state[:half])
        u = torch.cat([state[:half] * inverse_root, state[half:]])
        z = (u @ up).mul_(a)
        slopes = (z > 0) * a.square()
        slopes[:half] *= inverse_root
        state = torch.addmm(state, z.relu_().mul_(a), down)

        _project(before, u[:half], out=normed)
        torch.mm(normed.view(-1, width), up, out=units[:half].view(-1, width))
        torch.mm(after.view(-1, width), up, out=units[half:].view(-1, width))
        units.mul_(slopes.unsqueeze(1))
        tangents.view(-1, width).addmm_(units.view(-1, width), down)

        state[half:] *= _inverse_root(state[half:])
        _project(after, state[half:], out=after)
        if layer % RESCALE_EVERY == 0:
            tangents /= tangents.abs().amax((1, 2), keepdim=True)
        for column in (column for column, depth in enumerate(depths) if depth == layer + 1):
            ranks[:, column] = _effective_rank(tangents)
    return ranks


def _inverse_root(state: Any) -> Any:
    return state.square().mean(1, keepdim=True).add_(EPS).rsqrt_()


def _project(tangents: Any, u: Any, *, out: Any) -> None:
    """Apply the derivative of RMSNorm to each tangent, but for its factor: t - u (u·t) / d."""
    along = torch.bmm(tangents, u.unsqueeze(2))
    torch.addcmul(tangents, along, u.unsqueeze(1), value=-1 / tangents.shape[2], out=out)


def _effective_rank(matrices: Any) -> Any:
    values = torch.linalg.svdvals(matrices).double()
    shares = values / values.sum(1, keepdim=True)
    return torch.special.entr(shares).sum(1).exp().numpy()
