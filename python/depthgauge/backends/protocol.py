"""What a backend is: a module with the functions of `Backend`, and the arguments and results of these.

All take a `Stack`, the checked and flattened form of a block and its weights, or checked arrays, so that no backend
repeats an argument check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.equation import Block

# What a forward pass keeps for the derivatives.
Keep = Literal["states", "activations", "nothing"]


class Parameter(NamedTuple):
    """One weight array of a stack: weight set `s` uses ``array[index_of[s]]``."""

    array: Array  # (F, L, ...), C-order
    index_of: Indices  # (S,)


@dataclass(frozen=True, eq=False)
class Stack:
    """A block and its weights, checked and flattened to R replicates that share S sets of weights.

    `parameters` holds the arrays present, by the names of ``Weights.items()`` ("up", "down", "gate", "b_up", ...).
    `replicates` is the shape that results have in place of R; the replicate at flat position `r` uses weight set
    ``set_of[r]``.  `branch_scale` and `skip_scale` have one value a layer, shape (L,), rounded to `dtype`.  A
    backend keeps in `bound`, by its name, what it makes of the stack once.
    """

    block: Block
    depth: int
    width: int
    hidden: int
    dtype: np.dtype[Any]
    parameters: Mapping[str, Parameter]
    replicates: tuple[int, ...]
    set_of: Indices
    sets: int
    branch_scale: Array
    skip_scale: Array
    bound: dict[str, Any] = field(default_factory=dict, init=False, repr=False)


# The computed fields of `depthgauge.Forward`, `Backward` or `Tangent` by name; what was not asked for is None.
Results = dict[str, Any]


class SingularArrays(NamedTuple):
    """What `Backend.singular_values` returns: the true values are ``values * 2**exponent``, N stands for matrices.

    A matrix with a NaN or an infinity has a row of NaN, exponent 0; so has one that did not converge.
    """

    values: Array  # (N, p) in the dtype of the matrices, descending
    exponent: Indices  # (N,): the largest entry of matrix * 2**-exponent is in [1, 2); 0 for a matrix of zeros
    converged: npt.NDArray[np.bool_]  # (N,)


class JacobianAccumulator(Protocol):
    """The Jacobians of N = R * B examples, from the identity forward, multiplied out block after block.

    A Jacobian is kept in P parts: itself alone, or with a `max_order` K those of its K + 1 first path orders, where
    part k sums the paths through exactly k branches.  With post' the derivative of the post norm and J that of the
    branch r, a block takes part k to ``post' (skip_scale part_k + branch_scale J part_(k-1))``; before the first block
    part 0 is the identity, and the others are zero.  From a state with a NaN on, the Jacobian of that example is NaN.
    """

    def jacobians(self) -> tuple[Array, Indices]:
        """Return matrices (N, P, d, d) and exponents (N,): part p of example n is ``matrices[n, p] * 2**exponents[n]``.

        Element (i, j) is the derivative of output feature i by input feature j.
        """

    def singular_values(self) -> SingularArrays:
        """Return the singular values of the N * P matrices, true to their scale."""

    def squares(self) -> tuple[Floats, Floats]:
        """Return |branch_scale J|² / d and |post'|² / d, squares of Frobenius norms, of the blocks passed, (L, N).

        Only with a `max_order`; without a post norm the second is 1.
        """


class GradedAccumulator(Protocol):
    """The same Jacobians as products that lose nothing to what is large."""

    def log_singular_values(self) -> Floats:
        """Return the natural logs of the singular values, (N, d), descending; -inf for each that is exactly 0."""


Accumulator = JacobianAccumulator | GradedAccumulator


class Backend(Protocol):
    """The functions of a backend module; arrays they return own their memory."""

    def forward(
        self,
        stack: Stack,
        x: Array,
        x_of: Indices,
        *,
        keep: Keep,
        quantiles: tuple[float, ...],
        cosine: bool,
        threads: int,
    ) -> tuple[Results, Any]:
        """Push `x`, shape (X, B, d), any strides, through the stack.

        The replicate at flat position `r` starts from ``x[x_of[r]]``.  Beside the results stands the tape, whatever
        this backend's `vjp`, `jvp` and `states` need; it pickles, and is None when nothing is kept.
        """

    def states(self, tape: Any) -> Array:
        """Return the states on a tape, shape (R, L+1, B, d), replicates flat."""

    def vjp(
        self,
        stack: Stack,
        tape: Any,
        cotangent: Array,
        *,
        weight_grads: Literal[False, True, "rms"],
        quantiles: tuple[float, ...],
        threads: int,
    ) -> Results:
        """Pull `cotangent`, shape (P, R, B, d), any strides, back; P has no axes when `weight_grads` is not False.

        In the results `weights` is a dict of arrays (S, L, ...), summed over the replicates of a set.
        """

    def jvp(self, stack: Stack, tape: Any, tangent: Array, *, threads: int) -> Results:
        """Push `tangent`, shape (P, R, B, d), any strides, forward."""

    def products(self, stack: Stack, tape: Any, vectors: Array, *, transposed: bool, threads: int) -> Array:
        """Return the Jacobian at the one example of a tape, or its transpose, times vectors (V, d), in that shape.

        The stack has no replicates.
        """

    def jacobian_accumulator(
        self, count: int, width: int, dtype: np.dtype[Any], *, max_order: int | None, threads: int
    ) -> JacobianAccumulator:
        """Begin with the identity at `count` examples of `width` features."""

    def graded_accumulator(
        self, count: int, width: int, hidden: int, dtype: np.dtype[Any], *, threads: int
    ) -> GradedAccumulator:
        """Begin like `jacobian_accumulator`, for blocks of at most `hidden` hidden units."""

    def propagate(
        self,
        stacks: Sequence[Stack],
        states: Sequence[Array],
        accumulators: Sequence[Sequence[Accumulator]],
        first: int,
        blocks: int,
        *,
        threads: int,
    ) -> None:
        """Take states and accumulators through `blocks` blocks of their stacks, from block `first` on.

        Stacks have the same weights and kind of branch.  The states of each, (R, B, d) in C order, are overwritten;
        its accumulators, all of one kind, are of N = R * B examples.
        """

    def singular_values(self, a: Array, *, threads: int) -> SingularArrays:
        """Return the p = min(n, k) singular values of each matrix of `a`, shape (..., n, k), any strides, in C order.

        Errors are a few eps of the largest value of the same matrix.
        """

    def log_singular_values(self, factors: Sequence[Array], *, prefixes: bool, threads: int) -> Floats:
        """Return the logs of the singular values of ``factors[-1] @ ... @ factors[0]``, shape (N, k), descending.

        Factors have shapes (..., m, n) that chain, the same leading axes, of N products in all, any strides, and one
        dtype; there is at least one.  With `prefixes` those after each factor, (N, L, k), where k is the largest number
        of them and what a smaller product lacks is NaN.
        """

    def relative_singular_values(self, a: Array, *, threads: int) -> Array:
        """Return singular values, shape (N, p), each to high relative accuracy where the matrix determines it.

        `a` has shape (..., n, k), any strides; N counts its matrices, p is min(n, k).
        """

    def fill_normals(
        self,
        out: Array,
        seeds: npt.NDArray[np.uint64],
        *,
        first_layer: int,
        matrix: int,
        deviation: float,
        threads: int,
    ) -> None:
        """Fill `out`, shape (S, L, n), C-order, with normals, rounded, times `deviation`, rounded to its dtype.

        Numbers of ``out[s, l]`` are those that `seeds[s]`, layer ``first_layer + l`` and the number of a matrix stand
        for; `depthgauge.backends.reference.philox` gives the layout.  All backends make the same bits.
        """


def flat_vectors(stack: Stack, vectors: Array) -> Array:
    """Return cotangents or tangents with one axis of probes and one of replicates."""
    probe_axes = vectors.ndim - 2 - len(stack.replicates)
    return vectors.reshape(math.prod(vectors.shape[:probe_axes]), len(stack.set_of), *vectors.shape[-2:])
