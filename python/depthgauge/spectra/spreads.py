"""Singular values of many matrices, and how spread out they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, Indices, float_array, require_dtype
from depthgauge._common.results import Result, shaped
from depthgauge.backends import get_backend
from depthgauge.backends.protocol import SingularArrays
from depthgauge.spectra.measures import measures_of_logs, measures_of_values


@dataclass(frozen=True, eq=False, repr=False)
class Spread(Result):
    """How spread out the singular values of each matrix are, from `spread`.

    Below s are the singular values of one matrix and p = s / sum(s).  All measures are float64, of shape (...), that
    of the stack of matrices; of one matrix alone they are NumPy scalars.  All but `log_max` are free of scale: they
    are computed of s / max(s), so that 1e308 and 1e-320 are as good as 1.

    A matrix of zeros has ranks and participation 0, condition and log_spread NaN, log_max -inf.  Where the smallest
    value is exactly 0, condition and log_spread are infinite.  A matrix with no rows or no columns has effective rank
    0, the rest NaN.  Everything is NaN of a matrix with a NaN or an infinity, or that did not converge.

    Attributes
    ----------
    effective_rank : ndarray, shape (...)
        exp(-sum p ln p), with 0 ln 0 = 0; from 1 to `full_rank` (Roy & Vetterli 2007, "The effective rank").
    effective_rank_of_squares : ndarray, shape (...)
        The same of s².
    stable_rank : ndarray, shape (...)
        sum(s²) / max(s)².
    participation_ratio : ndarray, shape (...)
        sum(s²)² / sum(s⁴).
    condition : ndarray, shape (...)
        max(s) / min(s).
    log_spread : ndarray, shape (...)
        ln(max(s) / min(s)), finite where condition overflows.
    log_max : ndarray, shape (...)
        ln(max(s)).
    full_rank : ndarray of int64, shape (...)
        How many singular values the matrix has: the smaller of rows and columns.
    singular_values : ndarray, shape (..., p)
        Descending, in the dtype of the matrices; infinite or 0 where beyond its range.
    log_singular_values : ndarray, shape (..., p)
        Natural logarithms, float64, in range where `singular_values` is not; -inf for 0.
    converged : ndarray of bool, shape (...)
        False where the iteration gave up.
    """

    effective_rank: Floats
    effective_rank_of_squares: Floats
    stable_rank: Floats
    participation_ratio: Floats
    condition: Floats
    log_spread: Floats
    log_max: Floats
    full_rank: Indices
    singular_values: Array
    log_singular_values: Floats
    converged: npt.NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each measure, that of the stack of matrices."""
        return self.singular_values.shape[:-1]

    def __repr__(self) -> str:
        return self._line(
            shape=self.shape,
            singular_values=f"{self.singular_values.dtype}{list(self.singular_values.shape)}",
            effective_rank=_range(self.effective_rank),
            stable_rank=_range(self.stable_rank),
            log_spread=_range(self.log_spread),
            log_max=_range(self.log_max),
            converged=bool(np.all(self.converged)),
        )


def singular_values(
    a: npt.ArrayLike,
    *,
    accuracy: Literal["absolute", "relative"] = "absolute",
    backend: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return the singular values of each matrix of a stack.

    Parameters
    ----------
    a : array_like, shape (..., n, k)
        Matrices of float32 or float64, any layout.
    accuracy : {"absolute", "relative"}
        "absolute" gives each value to a few eps of the largest of the same matrix.  "relative" gives each value to
        high relative accuracy where the matrix determines it, as when its rows and columns differ widely in size,
        whatever their order; it takes longer.
    backend : {"native", "reference"}, optional
        None means the environment's ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        None means the environment's ``DEPTHGAUGE_NUM_THREADS``, or the CPUs this process may use; no more than those
        are used.

    Returns
    -------
    ndarray, shape (..., min(n, k))
        Descending, in the dtype of `a`; infinite or 0 where beyond its range.  All NaN for a matrix with a NaN or an
        infinity, or that did not converge (see `Spread.converged`); other matrices are not affected.

    Raises
    ------
    TypeError
        If the dtype is not float32 or float64, or an argument is of the wrong kind.
    ValueError
        If `a` has fewer than two axes, or an option is unknown.
    """
    arguments.choice("accuracy", accuracy, ("absolute", "relative"))
    implementation, workers = get_backend(backend), arguments.thread_count(threads)
    matrices = _matrices("a", a)
    if accuracy == "relative":
        values = implementation.relative_singular_values(matrices, threads=workers)
    else:
        values = _scaled(implementation.singular_values(matrices, threads=workers))
    return shaped(values, (*matrices.shape[:-2], values.shape[-1]))


def spread(
    a: npt.ArrayLike | None = None,
    *,
    singular_values: npt.ArrayLike | None = None,
    log_singular_values: npt.ArrayLike | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Spread:
    """Measure how spread out the singular values of each matrix of a stack are.

    Parameters
    ----------
    a : array_like, shape (..., n, k)
        Matrices of float32 or float64, any layout.
    singular_values : array_like, shape (..., p)
        Given instead of `a`: all singular values of each matrix, in any order.
    log_singular_values : array_like, shape (..., p)
        Given instead of `a`: their natural logarithms, in any order, -inf for 0.
    backend : {"native", "reference"}, optional
        As for `singular_values`.
    threads : int, optional
        As for `singular_values`.

    Returns
    -------
    Spread
        Given values are sorted, and a NaN or an infinity among those of one matrix makes all of its results NaN.

    Raises
    ------
    TypeError
        If the dtype is not float32 or float64, or an argument is of the wrong kind.
    ValueError
        If not exactly one of `a`, `singular_values` and `log_singular_values` is given, an array has too few axes, or
        a singular value is negative.
    """
    given = {"a": a, "singular_values": singular_values, "log_singular_values": log_singular_values}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise ValueError(f"spread takes exactly one of {', '.join(given)}; got {' and '.join(names) or 'none of them'}")
    implementation, workers = get_backend(backend), arguments.thread_count(threads)
    if a is not None:
        matrices = _matrices("a", a)
        return spread_of_values(implementation.singular_values(matrices, threads=workers), matrices.shape[:-2])
    name = names[0]
    array = float_array(name, given[name])
    if array.ndim < 1:
        raise ValueError(f"{name} must have shape (..., p), the values of a matrix along the last axis; got a scalar")
    rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    if name == "singular_values":
        if np.any(rows < 0):
            raise ValueError(f"singular_values must be >= 0; got {np.nanmin(rows)}")
        values = _descending(rows)
        found = SingularArrays(values, np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_))
        return spread_of_values(found, array.shape[:-1])
    return spread_of_logs(_descending(rows), array.dtype, array.shape[:-1])


def spread_ragged(
    matrices: Iterable[npt.ArrayLike], *, backend: str | None = None, threads: int | None = None
) -> Spread:
    """Measure how spread out the singular values of matrices of mixed shapes are.

    Matrices of the same shape, or of shapes that are each other's transpose, are computed together.

    Parameters
    ----------
    matrices : iterable of array_like, each of its own shape (n, k)
        N matrices, all float32 or all float64.
    backend : {"native", "reference"}, optional
        As for `singular_values`.
    threads : int, optional
        As for `singular_values`.

    Returns
    -------
    Spread
        Of shape (N,).  Rows of `singular_values` and `log_singular_values` are filled up with NaN to the largest
        `full_rank`; the measures are those of `spread` of each matrix, to the bit.

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or `matrices` is not iterable.
    ValueError
        If an item does not have two axes.
    """
    implementation, workers = get_backend(backend), arguments.thread_count(threads)
    items = _items(matrices)
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(tuple(sorted(item.shape, reverse=True)), []).append(index)
    dtype = items[0].dtype if items else np.dtype(np.float64)
    full = max((shape[1] for shape in groups), default=0)
    merged: dict[str, Array] = {}
    for shape, members in (groups or {(0, 0): []}).items():
        stack = np.empty((len(members), *shape), dtype)
        for matrix, member in zip(stack, members, strict=True):
            item = items[member]
            matrix[...] = item if item.shape == shape else item.T
        part = spread_of_values(implementation.singular_values(stack, threads=workers), (len(members),))
        places = np.array(members, np.intp)
        for name, array in part.to_dict().items():
            if name not in merged:
                padded = (len(items), full) if array.ndim == 2 else len(items)
                merged[name] = np.full(padded, np.nan if array.ndim == 2 else 0, array.dtype)
            merged[name][(places, slice(shape[1])) if array.ndim == 2 else places] = array
    return Spread(**merged)


def _matrices(name: str, value: object) -> Array:
    array = float_array(name, value)
    if array.ndim < 2:
        raise ValueError(f"{name} must have shape (..., n, k), a matrix or a stack of them; got {array.shape}")
    return array


def _items(matrices: Iterable[npt.ArrayLike]) -> list[Array]:
    """Return the matrices of a ragged list, checked."""
    try:
        listed = list(matrices)
    except TypeError:
        raise TypeError(f"matrices must be a list of matrices; got {type(matrices).__name__}") from None
    items = [float_array(f"matrices[{index}]", item) for index, item in enumerate(listed)]
    for index, item in enumerate(items):
        if item.ndim != 2:
            raise ValueError(f"matrices[{index}] must have shape (n, k); got {item.shape}")
        require_dtype(f"matrices[{index}]", item, items[0].dtype, "matrices[0]")
    return items


def _descending(rows: Array) -> Array:
    """Return a sorted copy of given values, NaN throughout where one of a row is NaN or inf."""
    values: Array = np.sort(rows, axis=-1)[:, ::-1] + 0  # C-order, and -0.0 becomes 0.0
    if values.size:
        first = values[:, 0]  # where NaN is sorted to, else inf
        values[np.isnan(first) | np.isposinf(first)] = np.nan
    return values


def spread_of_values(found: SingularArrays, shape: tuple[int, ...]) -> Spread:
    """Measure what a backend found, of which `values` are overwritten, as a Spread of the shape given."""
    with np.errstate(all="ignore"):
        measures = measures_of_values(found.values, found.exponent)
    return _result(measures, _scaled(found), found.converged, shape)


def spread_of_logs(logs: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Spread:
    """Measure logarithms, shape (N, p), each row descending or all NaN, as a Spread of the shape and dtype given."""
    with np.errstate(all="ignore"):
        values = np.exp(logs).astype(dtype)
        return _result(measures_of_logs(logs), values, np.ones(len(logs), np.bool_), shape)


def _scaled(found: SingularArrays) -> Array:
    """Return the true singular values, in the place of the scaled ones; each is rounded once, if at all."""
    values = found.values
    with np.errstate(all="ignore"):
        if np.all(np.abs(found.exponent) < np.finfo(values.dtype).maxexp):
            values *= np.ldexp(values.dtype.type(1), found.exponent)[:, None]
        else:  # the power of two alone may be out of range where its product with a value is not
            np.ldexp(values, found.exponent[:, None], out=values)
    return values


def _result(
    measures: dict[str, Floats], values: Array, converged: npt.NDArray[np.bool_], shape: tuple[int, ...]
) -> Spread:
    full = values.shape[-1]

    def of_matrices(array: Array) -> Any:
        found = shaped(array, shape)
        return found if shape else found[()]

    logs = shaped(measures.pop("log_singular_values"), (*shape, full))
    fields: dict[str, Any] = {name: of_matrices(array) for name, array in measures.items()}
    return Spread(
        **fields,
        full_rank=of_matrices(np.full(shape, full, np.int64)),
        singular_values=shaped(values, (*shape, full)),
        log_singular_values=logs,
        converged=of_matrices(converged),
    )


def _range(values: Any) -> str:
    """Return the least and the largest of what is not NaN, as text."""
    known = np.asarray(values)[~np.isnan(values)]
    if not known.size:
        return "nan" if np.size(values) else "nothing"
    low, high = float(np.min(known)), float(np.max(known))
    return f"{low:.3g}" if low == high else f"[{low:.3g}, {high:.3g}]"
