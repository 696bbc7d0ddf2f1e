"""The Jacobian of a residual stack sorted by how many branches its paths pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge._common.results import Result, shaped
from depthgauge.equation import BRANCH_MATRICES, Block
from depthgauge.jacobians.propagation import Propagation
from depthgauge.spectra.spreads import spread_of_values
from depthgauge.stacks.binding import AnyWeights, layer_scale


@dataclass(frozen=True, eq=False, repr=False)
class PathNorms(Result):
    """The sizes of the path orders of a Jacobian, from `path_norms`.

    R stands for the replicate axes (none for a single stack), L for blocks, K for the highest order, B for examples, d
    for features; all arrays are float64.

    Attributes
    ----------
    norms : ndarray, shape (R, K+1, B)
        Frobenius norms of T_0 ... T_K, where T_k sums the paths through exactly k branches.  What is beyond the dtype's
        range below the largest of an example reads 0.
    effective_rank : ndarray, shape (R, K+1, B), or None
        Effective ranks of the same, as of `Spread`.
    reconstruction_error : ndarray, shape (R, B)
        ``|T_0 + ... + T_K - J| / |J|`` in Frobenius norms, with J the Jacobian multiplied out by itself.  From K = L on
        that is rounding; below it is the share of what the orders left out add up to.  NaN where J is zero.
    branch_squares : ndarray, shape (R, L, B)
        b_l² = ``branch_scale**2 * |J_l|**2 / d``, with J_l the Jacobian of the l-th branch, its norms included.
    predicted : ndarray, shape (R, K+1, B)
        What `norms` would be if branches were uncorrelated, from the measured b_l² alone: see the notes.
    gain : ndarray, shape (R, B)
        What makes the root mean square over layers of b_l equal ``gain * beta * alpha**M``, with beta the root mean
        square of `branch_scale`, alpha the magnitude of `weight_scale` and M the number of matrices in a branch; NaN
        where the scales are 0.
    predicted_poisson : ndarray, shape (R, K+1, B)
        The cruder ``sqrt(d) * (gain * beta * alpha**M * sqrt(L))**k / sqrt(k!)``.

    Notes
    -----
    If products of branch Jacobians along different paths are uncorrelated, and each multiplies mean squares by its own
    b_l², then |T_k|² / d is the sum over all choices of k of the L layers of the product of their b_l²: the elementary
    symmetric polynomial e_k(b_1², ..., b_L²), generalized to the coefficient of t^k in the product over layers of
    ``n_l**2 * (skip_scale**2 + b_l**2 * t)``, where n_l² = |N_post'|² / d is 1 without a post norm.  Where no branch
    dominates and k is far below L, e_k comes near (b_1² + ... + b_L²)^k / k!, the terms of a Poisson law; that is the
    cruder prediction, which takes skip scales for 1 and knows no post norm.
    """

    norms: Floats
    effective_rank: Floats | None
    reconstruction_error: Floats
    branch_squares: Floats
    predicted: Floats
    gain: Floats
    predicted_poisson: Floats

    def __repr__(self) -> str:
        *replicates, orders, batch = self.norms.shape
        return self._line(
            replicates=tuple(replicates),
            depth=self.branch_squares.shape[-2],
            max_order=orders - 1,
            examples=batch,
            reconstruction_error=f"{np.max(self.reconstruction_error, initial=0.0):.3g}",
        )


def path_norms(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    max_order: int,
    *,
    ranks: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> PathNorms:
    """Measure the parts of a stack's Jacobian that sum its paths through exactly 0, 1, ... branches.

    Every block offers a path two ways, the skip or the branch, so that the Jacobian is the sum over all 2^L choices.
    T_k, the sum over those through k branches, follows from one pass: T_0 is the identity at the input, and a block
    makes it ``N_post' (skip_scale * T_k + branch_scale * J_l T_(k-1))``.

    Parameters
    ----------
    block, weights, x
        As for `jacobian`.
    max_order : int
        K >= 0; K + 1 matrices (d, d) are kept for each example, and no more than L + 1: the orders above L have no
        paths, and are 0.
    ranks : bool
        Compute effective ranks, too.
    backend, threads
        As for `jacobian`.

    Returns
    -------
    PathNorms

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or an argument is of the wrong kind.
    ValueError
        If shapes disagree, the weights lack what the branch needs, or `max_order` is negative.
    """
    asked = arguments.integer("max_order", max_order, minimum=0) + 1
    with_ranks = arguments.flag("ranks", ranks)
    run = Propagation(block, weights, x, backend, threads)
    orders = min(asked, weights.depth + 1)  # no path goes through more branches than there are
    by_order, whole = run.accumulator(orders - 1), run.accumulator()
    for _ in run.stops([weights.depth], [[by_order, whole]]):
        pass
    parts, exponents = by_order.jacobians()
    branch, post = by_order.squares()
    with np.errstate(all="ignore"):
        norms = np.ldexp(_frobenius(parts), exponents[:, None])
        error = _reconstruction_error(parts, exponents, *whole.jacobians())
        skip = layer_scale("skip_scale", block, weights).astype(np.float64)
        predicted = _elementary(branch, post, skip**2, orders) * math.sqrt(run.width)
        poisson = _poisson(np.sum(branch, axis=0), asked) * math.sqrt(run.width)
        gain = _gain(branch, block, weights)
    rank = None
    if with_ranks:
        found = by_order.singular_values()
        rank = _of_orders(spread_of_values(found, (run.count * run.batch, orders)).effective_rank, asked, run)
    by_layer = np.swapaxes(branch.reshape(weights.depth, run.count, run.batch), 0, 1)
    return PathNorms(
        norms=_of_orders(norms, asked, run),
        effective_rank=rank,
        reconstruction_error=shaped(error, (*run.replicates, run.batch)),
        branch_squares=shaped(by_layer, (*run.replicates, weights.depth, run.batch)),
        predicted=_of_orders(predicted, asked, run),
        gain=shaped(gain, (*run.replicates, run.batch)),
        predicted_poisson=_of_orders(poisson, asked, run),
    )


def _of_orders(array: Floats, asked: int, run: Propagation) -> Floats:
    """Return (N, up to K+1), of which the orders that it lacks are 0, as (R, K+1, B)."""
    by_order: Floats = np.zeros((run.count, asked, run.batch))
    by_order[:, : array.shape[-1]] = np.swapaxes(array.reshape(run.count, run.batch, array.shape[-1]), 1, 2)
    return shaped(by_order, (*run.replicates, asked, run.batch))


def _gain(branch: Floats, block: Block, weights: AnyWeights) -> Floats:
    """Return `PathNorms.gain`, shape (N,), from squares b_l², shape (L, N)."""
    beta_squares = np.square(layer_scale("branch_scale", block, weights), dtype=np.float64)
    alpha = abs(block.weight_scale) ** len(BRANCH_MATRICES[block.branch])
    return np.asarray(np.sqrt(np.sum(branch, axis=0) / np.sum(beta_squares)) / alpha)


def _frobenius(matrices: Array) -> Floats:
    """Return the Frobenius norms of matrices (..., d, d), whose squares may be out of range, in float64."""
    norms: Floats = np.zeros(matrices.shape[:-2])
    for index in np.ndindex(norms.shape):  # one at a time, for float64 copies of all may not fit in memory
        exponent = np.frexp(np.max(np.abs(matrices[index]), initial=0))[1]
        scaled = np.ldexp(matrices[index].astype(np.float64), -exponent)
        norms[index] = np.ldexp(np.sqrt(np.sum(scaled**2)), exponent)
    return norms


def _reconstruction_error(parts: Array, exponents: Indices, whole: Array, whole_exponents: Indices) -> Floats:
    """Return |sum of parts - whole| / |whole| of each example, shape (N,)."""
    shift = np.clip(exponents - whole_exponents, -5000, 5000)
    error: Floats = np.zeros(len(parts))
    for member, matrix in enumerate(whole[:, 0]):
        total = np.ldexp(np.sum(parts[member], axis=0, dtype=np.float64), shift[member])
        error[member] = _frobenius(total - matrix) / _frobenius(matrix)
    return error


def _elementary(branch: Floats, post: Floats, skip: Floats, orders: int) -> Floats:
    """Return square roots of the first coefficients of the product over layers of ``post * (skip + branch * t)``.

    All are positive, and are multiplied in logarithms, whose range no coefficient leaves.

    Parameters
    ----------
    branch, post : ndarray, shape (L, N)
    skip : ndarray, shape (L,)

    Returns
    -------
    ndarray, shape (N, orders)
    """
    logs: Floats = np.full((branch.shape[1], orders), -np.inf)
    logs[:, 0] = 0
    for b, n, s in zip(branch, post, skip, strict=True):
        through_branch = logs[:, :-1] + np.log(b)[:, None]
        logs += np.log(s)
        logs[:, 1:] = np.logaddexp(logs[:, 1:], through_branch)
        logs += np.log(n)[:, None]
    return np.asarray(np.exp(logs / 2))


def _poisson(total: Floats, orders: int) -> Floats:
    """Return ``sqrt(total**k / k!)``, shape (N, orders)."""
    k = np.arange(orders)
    factorials = np.array([math.lgamma(order + 1) for order in k])
    powers = np.where(k > 0, k * np.log(total)[:, None], 0)  # 0 ** 0 is 1
    return np.asarray(np.exp((powers - factorials) / 2))
