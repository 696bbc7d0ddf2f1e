"""Singular values of long products, far outside the range and the precision of the product itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, broadcast_to, float_array, require_dtype
from depthgauge._common.results import shaped
from depthgauge.backends import get_backend


def log_singular_values(
    factors: npt.ArrayLike | Sequence[npt.ArrayLike],
    *,
    prefixes: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Floats:
    """Compute the natural logarithms of all singular values of a product of matrices.

    The product is ``F[L-1] @ ... @ F[1] @ F[0]``, the order in which maps of column vectors are applied; for weights
    that act on rows, pass their transposes.  It is never multiplied out: the smallest values are found as well as the
    largest, though they may differ by thousands of orders of magnitude.

    Parameters
    ----------
    factors : array_like, shape (..., L, d, d), or list or tuple of L array_like, shapes (..., m, n)
        An array is a stack of square factors.  The items of a list or tuple are the factors, each with as many columns
        as the one before has rows; their leading axes broadcast.  float32 or float64, any layout.
    prefixes : bool
        Return the values after each factor: index l is of ``F[l] @ ... @ F[0]``.
    backend : {"native", "reference"}, optional
        By default ``DEPTHGAUGE_BACKEND``, or native.
    threads : int, optional
        At most so many threads, by default ``DEPTHGAUGE_NUM_THREADS`` or the CPUs this process may use; products are
        distributed over them, and one product takes one.

    Returns
    -------
    ndarray of float64, shape (..., k), or (..., L, k) with `prefixes`
        Descending.  k is the smaller of the rows of the last factor and the columns of the first; with `prefixes` it is
        the largest such number, and what a smaller product lacks is NaN.  -inf for each rank that is lost exactly: to
        rows or columns of zeros, or to the shape of a factor.  A rank that is lost only up to rounding has a finite
        value, at about the level of rounding.  All NaN for a product with a NaN or an infinity in a factor, or in the
        event that it does not converge; other products are not affected.

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, or dtypes differ, or an argument is of the wrong kind.
    ValueError
        If the factors do not chain, or there is none and no array to tell the size.

    Notes
    -----
    Errors are about eps times the condition number of each factor, its rows and columns scaled to the size of one,
    summed over the factors: 1e-13 to 1e-11 for a hundred random factors, whether those are graded by rows, by columns
    or by both.  What the factors do not determine themselves, as the small values of a factor rotated out of sight, no
    method can tell.  The product has no range to stay in, but a single factor has: where its rows or columns differ by
    more than 1e300 in size, and the next one undoes that, values may be lost, or all be NaN.  Arithmetic is in float64,
    also for float32 factors, whose small values float32 would lose within a few factors.

    The product is kept as Q D U, with orthonormal Q, a diagonal D of integer powers of two and rows of about unit size
    in U, and updated by QR with row and column pivoting, after [1]_; one-sided Jacobi [2]_ on D U finishes.

    References
    ----------
    .. [1] A. J. Cox and N. J. Higham, "Stability of Householder QR factorization for weighted least squares problems",
       Numerical Analysis 1997, Pitman Research Notes 380, 1998.
    .. [2] Z. Drmac and K. Veselic, "New fast and accurate Jacobi SVD algorithm I", SIAM J. Matrix Anal. Appl. 29, 2008.

    Examples
    --------
    >>> import numpy as np
    >>> import depthgauge as dg
    >>> factors = np.broadcast_to(np.diag([1.0, 1e-5]), (100, 2, 2))
    >>> dg.log_singular_values(factors) / np.log(10)
    array([   0., -500.])
    """
    implementation, workers = get_backend(backend), arguments.thread_count(threads)
    prefixes = arguments.flag("prefixes", prefixes)
    if isinstance(factors, list | tuple):
        matrices = _chain(factors)
    else:
        stack = _stack(factors)
        *leading, depth, _, size = stack.shape
        if not depth:  # the product of none is the identity; there is nothing after each
            return np.zeros((*leading, 0, size) if prefixes else (*leading, size))
        matrices = [stack[..., layer, :, :] for layer in range(depth)]
    logs = implementation.log_singular_values(matrices, prefixes=prefixes, threads=workers)
    return shaped(logs, matrices[0].shape[:-2] + logs.shape[1:])


def _stack(factors: object) -> Array:
    """Return a stack of factors, checked; a lone one need not be square."""
    stack = float_array("factors", factors)
    if stack.ndim < 3 or (stack.shape[-1] != stack.shape[-2] and stack.shape[-3] != 1):
        raise ValueError(
            f"factors must have shape (..., L, d, d), or be a list of matrices that chain; got {stack.shape}"
        )
    return stack


def _chain(factors: Sequence[npt.ArrayLike]) -> list[Array]:
    """Return the factors of a list, checked, with all the same leading axes."""
    if not factors:
        raise ValueError(
            "factors is empty, which leaves the size of the product unknown; pass an array of shape (..., 0, d, d)"
        )
    matrices = [float_array(f"factors[{index}]", factor) for index, factor in enumerate(factors)]
    for index, matrix in enumerate(matrices):
        require_dtype(f"factors[{index}]", matrix, matrices[0].dtype, "factors[0]")
        if matrix.ndim < 2:
            raise ValueError(f"factors[{index}] must have shape (..., m, n); got {matrix.shape}")
        if index and matrix.shape[-1] != matrices[index - 1].shape[-2]:
            raise ValueError(
                f"factors[{index}] must have as many columns as factors[{index - 1}] has rows; "
                f"got {matrix.shape} after {matrices[index - 1].shape}"
            )
    try:
        leading = np.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    except ValueError:
        shapes = ", ".join(str(shape) for shape in dict.fromkeys(matrix.shape for matrix in matrices))
        raise ValueError(f"the leading axes of factors do not broadcast; got shapes {shapes}") from None
    return [broadcast_to(matrix, leading + matrix.shape[-2:]) for matrix in matrices]
