"""Jacobians of a stack, whole, after any number of its blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.results import shaped
from depthgauge.backends.protocol import JacobianAccumulator
from depthgauge.equation import Block
from depthgauge.jacobians.propagation import Propagation, depth_list
from depthgauge.stacks.binding import AnyWeights


@overload
def jacobian(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: Literal[False] = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Array: ...
@overload
def jacobian(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: Literal[True],
    backend: str | None = None,
    threads: int | None = None,
) -> tuple[Array, Floats]: ...
def jacobian(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Array | tuple[Array, Floats]:
    """Compute the Jacobian of a stack at each example.

    Element (i, j) is the derivative of feature i of the state by feature j of the input.  All d tangents go
    forward together, block after block, and only the latest Jacobian is kept.  Once there is a NaN in the state of an
    example, its Jacobian is NaN, dead units or not.

    Parameters
    ----------
    block : Block
        The equation of a block.
    weights : Weights or GeneratedWeights
        The weights of L blocks of width d.
    x : array_like, shape (..., B, d)
        The input, one row an example, in the dtype of the weights.  Leading axes are replicates; they broadcast with
        those of the weights to R.
    depths : sequence of int, optional
        After how many blocks, each from 0 (the identity) to L, in any order.  None gives the whole stack's alone.
    return_log_scale : bool
        Return the matrices with a factor taken out, which keeps them in range at any depth.
    backend : {"native", "reference"}, optional
        None means the environment's ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        None means the environment's ``DEPTHGAUGE_NUM_THREADS``, or the CPUs this process may use; no more than those
        are used.

    Returns
    -------
    ndarray, shape (R, B, d, d), or (R, D, B, d, d) with D `depths`
        In the dtype of the weights; infinite or 0 where beyond its range.
    (ndarray, ndarray), shapes (R, B, d, d) and (R, B), or (R, D, B, d, d) and (R, D, B)
        With `return_log_scale`: matrices A and, in float64, logarithms e; the Jacobian is ``exp(e) * A``.  The largest
        magnitude in each A is in [1, 2), and e a multiple of ln 2; a matrix of zeros, or with a NaN or an infinity,
        stays as it is, with e = 0.

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or an argument is of the wrong kind.
    ValueError
        If shapes disagree, the weights lack what the branch needs, or a depth is not in the stack.

    See Also
    --------
    jacobian_prefixes : One depth after another, where not all fit in memory.
    jacobian_operator : Products with a Jacobian too large to hold.
    """
    split = arguments.flag("return_log_scale", return_log_scale)
    run = Propagation(block, weights, x, backend, threads)
    wanted = [weights.depth] if depths is None else depth_list(depths, weights.depth)
    accumulator = run.accumulator()
    matrices: Array = np.empty((run.count, len(wanted), run.batch, run.width, run.width), weights.dtype)
    logs: Floats = np.empty(matrices.shape[:3])
    for depth in run.stops(sorted(set(wanted)), [[accumulator]]):
        found, log_scale = _read(accumulator, split)
        places = np.flatnonzero(np.equal(wanted, depth))
        matrices[:, places] = found.reshape(run.count, 1, run.batch, run.width, run.width)
        logs[:, places] = log_scale.reshape(run.count, 1, run.batch)
    axes = () if depths is None else (len(wanted),)
    matrices = shaped(matrices, (*run.replicates, *axes, run.batch, run.width, run.width))
    return (matrices, shaped(logs, matrices.shape[:-2])) if split else matrices


@overload
def jacobian_prefixes(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: Literal[False] = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Iterator[tuple[int, Array]]: ...
@overload
def jacobian_prefixes(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: Literal[True],
    backend: str | None = None,
    threads: int | None = None,
) -> Iterator[tuple[int, tuple[Array, Floats]]]: ...
def jacobian_prefixes(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    return_log_scale: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Iterate over the Jacobians after each of some numbers of blocks, in one pass that holds one at a time.

    Parameters
    ----------
    block, weights, x, return_log_scale, backend, threads
        As for `jacobian`.  The weights are read as the iteration proceeds.
    depths : sequence of int, optional
        After how many blocks, each from 0 (the identity) to L; each is visited once, in ascending order.  None means
        all, 0 to L.

    Yields
    ------
    depth : int
    jacobian : ndarray, shape (R, B, d, d)
        As `jacobian` returns for that depth; with `return_log_scale` the pair of it and its logarithms, (R, B).

    Raises
    ------
    TypeError, ValueError
        As for `jacobian`, at the call.
    """
    split = arguments.flag("return_log_scale", return_log_scale)
    run = Propagation(block, weights, x, backend, threads)
    return _prefixes(run, sorted(set(depth_list(depths, weights.depth))), split)


def _prefixes(run: Propagation, depths: list[int], split: bool) -> Iterator[tuple[int, Any]]:
    leading, accumulator = (*run.replicates, run.batch), run.accumulator()
    for depth in run.stops(depths, [[accumulator]]):
        found, logs = _read(accumulator, split)
        matrices = shaped(found, leading + found.shape[1:])
        yield depth, (matrices, shaped(logs, leading)) if split else matrices


def _read(accumulator: JacobianAccumulator, split: bool) -> tuple[Array, Floats]:
    """Return Jacobians, (N, d, d), with the logarithms (N,) taken out, which are 0 if not `split`."""
    parts, exponents = accumulator.jacobians()
    matrices = parts[:, 0]
    kept: Indices = np.zeros_like(exponents)
    if split:
        largest = np.max(np.abs(matrices), axis=(1, 2), initial=0)
        scalable = np.isfinite(largest) & (largest > 0)
        kept = np.where(scalable, np.frexp(largest)[1] - 1 + exponents, 0)
    shifts = exponents - kept
    if np.any(shifts):
        with np.errstate(all="ignore"):
            matrices = np.ldexp(matrices, shifts[:, None, None])
    return matrices, np.multiply(kept, math.log(2))
