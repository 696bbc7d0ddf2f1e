"""Effective ranks over a grid in torch, on weights that all settings of a seed share: two ways to advance Jacobians.

Together, all settings are one product with the weights; apart, each has its own, smaller by its dead units.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def grid_ranks(
    scales: Sequence[float], depths: Sequence[int], seeds: Sequence[int], x: Array, threads: int, *, apart: bool
) -> Array:
    """Return effective ranks (2 * len(scales), len(seeds), len(depths)), on weights of each seed.

    Together, torch's threads share every operation; apart, each thread takes some of the scales and all their
    operations, and draws the weights again.
    """
    workers = min(threads, len(scales)) if apart else 1
    parts = [range(first, len(scales), workers) for first in range(workers)]
    torch.set_num_threads(1 if apart else threads)
    ranks = np.empty((2, len(scales), len(seeds), len(depths)))

    def fill(part: Sequence[int]) -> None:
        chosen = [scales[index] for index in part]
        for column, seed in enumerate(seeds):
            found = effective_ranks(lecun(seed, x.shape[1]), x, chosen, depths, apart=apart)
            ranks[:, part, column] = found.reshape(2, len(part), -1)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(fill, parts))
    return ranks.reshape(2 * len(scales), len(seeds), len(depths))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def effective_ranks(draw: Draw, x: Array, scales: Sequence[float], depths: Sequence[int], *, apart: bool) -> Array:
    """Return effective ranks (2 * len(scales), len(depths)): those of the pre-norm settings, then of the post-norm.

    Blocks are h + a phi(N(h) a up) a down, and N of h + a phi(h a up) a down, with phi ReLU and N RMSNorm.
    The Jacobians are kept as transposes, a tangent a row, and without the factors that an effective rank is free of.
    """
    half = len(scales)
    a = torch.tensor(np.tile(scales, 2).astype(x.dtype)).unsqueeze(1)
    state = torch.from_numpy(x).repeat(2 * half, 1)
    tangents = torch.eye(x.shape[1], dtype=state.dtype).repeat(2 * half, 1, 1)
    workspace = torch.empty((3 * half, *tangents.shape[1:]), dtype=state.dtype)
    ranks = np.empty((2 * half, len(depths)))
    for layer in range(max(depths)):
        up, down = draw(layer)
        inverse_root = _inverse_root(state[:half])
        u = torch.cat([state[:half] * inverse_root, state[half:]])
        z = (u @ up).mul_(a)
        slopes = (z > 0) * a.square()
        slopes[:half] *= inverse_root
        state = torch.addmm(state, z.relu_().mul_(a), down)
        state[half:] *= _inverse_root(state[half:])
        if apart:
            _advance_apart(tangents, u[:half], slopes, state[half:], up, down)
        else:
            _advance_together(tangents, u[:half], slopes, state[half:], up, down, workspace)
        if layer % RESCALE_EVERY == 0:
            tangents /= tangents.abs().amax((1, 2), keepdim=True)
        for column in (column for column, depth in enumerate(depths) if depth == layer + 1):
            ranks[:, column] = _effective_rank(tangents)
    return ranks


def _advance_together(tangents: Any, u: Any, slopes: Any, out: Any, up: Any, down: Any, workspace: Any) -> None:
    """Carry all tangents through a layer: `u` is what the pre-norms give, `out` what the post-norms give."""
    half, width = u.shape
    before, after = tangents[:half], tangents[half:]
    normed, units = workspace[:half], workspace[half:]
    _project(before, u, out=normed)
    torch.mm(normed.view(-1, width), up, out=units[:half].view(-1, width))
    torch.mm(after.view(-1, width), up, out=units[half:].view(-1, width))
    units.mul_(slopes.unsqueeze(1))
    tangents.view(-1, width).addmm_(units.view(-1, width), down)
    _project(after, out, out=after)


def _advance_apart(tangents: Any, u: Any, slopes: Any, out: Any, up: Any, down: Any) -> None:
    """Do the same one setting at a time, without the rows of dead units, the pre-norm applied to the weights."""
    half, width = u.shape
    turned_up = up.mT.contiguous()
    for index, slope in enumerate(slopes.amax(1).tolist()):
        live = slopes[index].nonzero().flatten()
        first, second = turned_up.index_select(0, live), down.index_select(0, live)
        if index < half:
            first.addr_(torch.mv(first, u[index]), u[index], alpha=-1 / width)
        own = tangents[index]
        own.addmm_(own @ first.mT, second, alpha=slope)
        if index >= half:
            normal = out[index - half]
            own.addr_(torch.mv(own, normal), normal, alpha=-1 / width)


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
