"""Jacobians carried forward through stacks in NumPy: multiplied out, and as graded products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.backends.protocol import SingularArrays, Stack
from depthgauge.backends.reference import graded
from depthgauge.backends.reference.block import Layer, Passage
from depthgauge.backends.reference.singular import singular_values

# An example is rescaled once its largest derivative leaves 2^-30 ... 2^30.
_RANGE = 30


def jacobian_walk(x: Array, x_of: Indices, *, max_order: int | None, threads: int) -> JacobianWalk:
    """Begin with the states of `x`, shape (X, B, d); replicate r starts from ``x[x_of[r]]``."""
    del threads
    return JacobianWalk(np.array(x[x_of], order="C"), max_order)


def jacobian_walks(x: Array, x_of: Indices, count: int, *, threads: int) -> JacobianWalks:
    """Begin so many walks like `jacobian_walk`."""
    return JacobianWalks([jacobian_walk(x, x_of, max_order=None, threads=threads) for _ in range(count)])


def graded_walk(x: Array, x_of: Indices, *, threads: int) -> GradedWalk:
    """Begin like `jacobian_walk`."""
    del threads
    return GradedWalk(np.array(x[x_of], order="C"))


class _States:
    """States on their way through one stack after another."""

    def __init__(self, h: Array) -> None:
        self.h = h  # (R, B, d)
        # Whether there was a NaN in a state.  Dead units pass nothing on, not even that, so that from there on
        # derivatives say nothing.
        self.lost = np.zeros(h.shape[:2], np.bool_)

    def enter(self, stack: Stack) -> None:
        self._stack, self._index = stack, 0

    def step(self) -> tuple[Layer, Passage]:
        """Pass one block."""
        layer = Layer(self._stack, self._index)
        passage = layer.forward(self.h)
        self.h, self._index = passage.next, self._index + 1
        self.lost |= np.any(np.isnan(self.h), axis=-1)
        return layer, passage


class JacobianWalk:
    """Jacobians, or their path orders, multiplied out; see `depthgauge.backends.JacobianWalk`."""

    def __init__(self, h: Array, max_order: int | None) -> None:
        *_, width = h.shape
        self._states = _States(h)
        # Columns of the Jacobians are tangents: element (p, j, r, b, i) is d h_i / d x_j along paths of order p.
        self._unit = _unit_vectors(width, h)
        self._parts: Array = np.zeros((1 if max_order is None else max_order + 1, *self._unit.shape), h.dtype)
        self._parts[0] = self._unit
        self._exponents: Indices = np.zeros(h.shape[:2], np.int64)
        self._orders = max_order is not None
        self._squares: list[tuple[Floats, Floats]] = []

    def enter(self, stack: Stack) -> None:
        """Take the blocks of `stack` next."""
        self._states.enter(stack)

    @np.errstate(all="ignore")
    def advance(self, blocks: int) -> None:
        """Pass so many blocks."""
        for _ in range(blocks):
            layer, at = self._states.step()
            if self._orders:
                total = layer.skip_jvp(self._parts)
                total[1:] += layer.branch_jvp(at, self._parts[:-1])
                self._parts = layer.post_jvp(at, total)
                self._measure(layer, at)
            else:
                self._parts = layer.jvp(at, self._parts)
            self._parts[:, :, self._states.lost] = np.nan
            self._rescale()

    def jacobians(self) -> tuple[Array, Indices]:
        """Return matrices (N, P, d, d), and the exponents of two (N,) that belong to them."""
        matrices = np.transpose(self._parts, (2, 3, 0, 4, 1))
        shape = (math.prod(matrices.shape[:2]), *matrices.shape[2:])
        return np.array(matrices, order="C").reshape(shape), self._exponents.flatten()

    def singular_values(self) -> SingularArrays:
        """Return the singular values of each matrix."""
        matrices, exponents = self.jacobians()
        found = singular_values(matrices, threads=1)
        nonzero = found.values[:, :1] > 0
        of_matrix = np.repeat(exponents, matrices.shape[1])
        return found._replace(exponent=found.exponent + np.where(np.any(nonzero, axis=1), of_matrix, 0))

    def squares(self) -> tuple[Floats, Floats]:
        """Return |branch_scale J|² / d and |post'|² / d of the blocks passed, each (L, N)."""
        shape = (len(self._squares), self._exponents.size)
        branch, post = (np.array([pair[i] for pair in self._squares]).reshape(shape) for i in (0, 1))
        return branch, post

    def _measure(self, layer: Layer, at: Passage) -> None:
        through_branch, through_post = layer.branch_jvp(at, self._unit), layer.post_jvp(at, self._unit)
        lost = self._states.lost.flatten()
        branch, post = (np.where(lost, np.nan, _mean_square(images)) for images in (through_branch, through_post))
        self._squares.append((branch, post))

    def _rescale(self) -> None:
        largest = np.max(np.abs(self._parts), axis=(0, 1, 4), initial=0)
        exponents = np.frexp(np.where(np.isfinite(largest), largest, 0))[1].astype(np.int64)
        exponents[np.abs(exponents) <= _RANGE] = 0
        self._parts = np.ldexp(self._parts, -exponents[:, :, None])
        self._exponents += exponents


class JacobianWalks:
    """Several walks, one after the other; see `depthgauge.backends.JacobianWalks`."""

    def __init__(self, walks: list[JacobianWalk]) -> None:
        self._walks = walks

    def enter(self, stacks: Sequence[Stack]) -> None:
        """Take the blocks of `stacks` next."""
        for walk, stack in zip(self._walks, stacks, strict=True):
            walk.enter(stack)

    def advance(self, blocks: int) -> None:
        """Pass so many blocks."""
        for walk in self._walks:
            walk.advance(blocks)

    def singular_values(self, index: int) -> SingularArrays:
        """Return the singular values of each matrix of one walk."""
        return self._walks[index].singular_values()


class GradedWalk:
    """Jacobians as graded products; see `depthgauge.backends.GradedWalk`."""

    def __init__(self, h: Array) -> None:
        replicates, batch, width = h.shape
        self._states = _States(h)
        self._products = [graded.identity(width) for _ in range(replicates * batch)]
        self._known = np.ones(len(self._products), np.bool_)  # False from a factor on that is not finite
        self._unit = _unit_vectors(width, h)

    def enter(self, stack: Stack) -> None:
        """Take the blocks of `stack` next."""
        self._states.enter(stack)

    @np.errstate(all="ignore")
    def advance(self, blocks: int) -> None:
        """Pass so many blocks."""
        for _ in range(blocks):
            layer, at = self._states.step()
            self._known &= ~self._states.lost.flatten()
            if layer.skip_scale:
                self._multiply(_matrices(layer.jvp(at, self._unit)))
            else:
                # The block is the branch alone, and can have no more ranks than that has live hidden units.
                up = _matrices(layer.hidden_jvp(at, self._unit))
                each = _unit_vectors(at.z.shape[-1], at.z)
                down = _matrices(layer.post_jvp(at, layer.down_jvp(at, each)))
                live = _live(at).reshape(len(up), up.shape[1])
                self._multiply([matrix[units] for matrix, units in zip(up, live, strict=True)])
                self._multiply([matrix[:, units] for matrix, units in zip(down, live, strict=True)])

    def log_singular_values(self) -> Floats:
        """Return the logs of the singular values, shape (N, d)."""
        width = self._unit.shape[-1]
        logs: Floats = np.full((len(self._products), width), -np.inf)
        with np.errstate(all="ignore"):
            for known, product, out in zip(self._known, self._products, logs, strict=True):
                exponents, values = graded.singular_values(product)
                out[: len(values)] = exponents * np.log(2.0) + np.log(values)
                if not known:
                    out[:] = np.nan
        return logs

    def _multiply(self, factors: Iterable[Array]) -> None:
        for member, factor in enumerate(factors):
            self._known[member] &= np.all(np.isfinite(factor))
            if self._known[member]:
                self._products[member] = graded.multiply(factor.astype(np.float64), self._products[member])


def _unit_vectors(size: int, like: Array) -> Array:
    """Return the unit vectors for each example of `like`, shape (R, B, ...), as tangents (size, R, B, size)."""
    unit: Array = np.zeros((size, *like.shape[:2], size), like.dtype)
    each = np.arange(size)
    unit[each, :, :, each] = 1
    return unit


def _matrices(images: Array) -> Array:
    """Return the matrix of each example, (N, m, n), from the images of n unit vectors, (n, R, B, m)."""
    matrices = np.moveaxis(images, 0, -1)
    return matrices.reshape(math.prod(matrices.shape[:2]), *matrices.shape[2:])


def _live(at: Passage) -> npt.NDArray[np.bool_]:
    """Return which hidden units pass anything on, (R, B, m); in a gated branch they have two ways to."""
    steep = at.slope if at.value is None else np.where(at.slope == 0, 0, at.slope * at.value)
    return np.asarray((steep != 0) | (False if at.value is None else at.phi != 0))


def _mean_square(images: Array) -> Floats:
    """Return the squared Frobenius norm over the columns of each example's matrix, (N,)."""
    columns, *_ = images.shape
    matrices = np.moveaxis(images, 0, -1).astype(np.float64)
    exponents = np.frexp(np.max(np.abs(matrices), axis=(-2, -1), initial=0))[1]
    total = np.sum(np.ldexp(matrices, -exponents[..., None, None]) ** 2, axis=(-2, -1))
    return np.asarray(np.ldexp(np.divide(total, columns), 2 * exponents)).flatten()
