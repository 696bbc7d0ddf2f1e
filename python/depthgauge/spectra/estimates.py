"""The spread of the singular values of a matrix too large to factor, or known by its products alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Floats
from depthgauge._common.results import Result
from depthgauge.backends import backend_name
from depthgauge.spectra.lanczos import Bidiagonalization
from depthgauge.spectra.linear_operators import NonFiniteError, Operator, read_operator
from depthgauge.spectra.quadrature import Measure, relative_influence, times_log
from depthgauge.spectra.range_finder import TopPart, next_part, products_for

# Steps after which the decay of the spectrum is judged.
_LOOK = 12
# How many times fewer products the top part must promise for the same precision: a flat spectrum, of which subspace
# iteration finds no value well, does not come near.
_GAIN = 4.0
# Fewer values are taken where that costs up to this much more: the look is coarse, and the bulk of a spectrum holds
# many that subspace iteration would not find.
_SLACK = 1.5
# The largest share of all singular values that the top part takes. It takes no more memory than the quadrature, either.
_SHARE = 0.25
# The relative standard error beyond which more precision is worth nothing.
_PRECISION = 1e-3


class SupportsProducts(Protocol):
    """A matrix known by its products, as SciPy's LinearOperator; columns are vectors."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, (m, n)."""

    @property
    def dtype(self) -> Any:
        """float32 or float64."""

    def matmat(self, X: Any, /) -> Any:
        """Return the product with X, shape (n, k), as (m, k)."""

    def rmatmat(self, X: Any, /) -> Any:
        """Return the product of the transpose with X, shape (m, k), as (n, k)."""


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Result):
    """The spread of the singular values of one m x n matrix, from `estimate_spread`.

    All values are NaN if a product held a NaN or an infinity.

    Attributes
    ----------
    effective_rank : float
        exp(-sum p ln p) with p = s / sum(s).  Between 1 and `full_rank`; 0 for a zero or empty matrix.
    stable_rank : float
        sum(s²) / max(s)².
    log_max : float
        Natural log of the largest singular value, from below; -inf for a zero matrix.
    standard_error : float
        Of the effective rank, over probes; NaN for one probe.  With Student's t of ``probes - 1`` degrees of freedom it
        gives an interval.  It does not know of the bias from too few steps.
    method : {"lanczos", "top+lanczos"}
        Lanczos quadrature alone, or with the largest singular values found one by one and the quadrature for the rest.
    bias_check : float
        Change of the effective rank by the last step; NaN where one step was asked for.  The bias left is up to some
        tens of times this on a spectrum that reaches down to zero, where it falls with the steps like their power -1.5.
    applications : int
        To how many vectors the operator, or its transpose, was applied.
    full_rank : int
        n = min(rows, columns), the number of singular values.
    nodes, weights : ndarray, shape (probes, K)
        What each probe saw: for any function f, ``full_rank * sum(weights * f(nodes))`` along the last axis estimates
        the sum of f over the singular values.  The weights of a probe sum to one; where it stopped before the others,
        its last node is repeated with weight 0.
    """

    effective_rank: float
    stable_rank: float
    log_max: float
    standard_error: float
    method: Literal["lanczos", "top+lanczos"]
    bias_check: float
    applications: int
    full_rank: int
    nodes: Floats
    weights: Floats

    def __repr__(self) -> str:
        return self._line(
            effective_rank=f"{self.effective_rank:.6g} ± {self.standard_error:.2g}",
            stable_rank=f"{self.stable_rank:.4g}",
            log_max=f"{self.log_max:.4g}",
            full_rank=self.full_rank,
            method=self.method,
            bias_check=f"{self.bias_check:.2g}",
            applications=self.applications,
        )


def estimate_spread(
    operator: npt.ArrayLike | SupportsProducts,
    *,
    probes: int = 16,
    steps: int = 48,
    seed: int = 0,
    backend: str | None = None,
    threads: int | None = None,
) -> Estimate:
    """Estimate the spread of the singular values of a large matrix from products with it.

    Stochastic Lanczos quadrature: each probe is a random vector, from which Golub-Kahan bidiagonalization with full
    reorthogonalization gives a Gauss quadrature over the singular values.  It is precise on spread-out spectra.
    Where few values hold most of the sum, as in a product of many ReLU layers, random vectors hardly meet them; a short
    look at the spectrum tells, and these values are then computed by randomized subspace iteration and projected out,
    and only the rest is estimated.

    Parameters
    ----------
    operator : array_like or operator, shape (m, n)
        A matrix, or an object with `shape`, `dtype`, ``matmat(X)`` and ``rmatmat(Y)``, products with the matrix and its
        transpose, columns as vectors, such as SciPy's LinearOperator; float32 or float64.
    probes : int
        Number of random vectors.  The standard error falls like ``probes**-0.5``; one product takes all of them.
    steps : int
        Lanczos steps a probe, at most min(m, n).  The bias falls with more.
    seed : int
        Of the probes.  The first probes of many are the same as those of few.
    backend : {"native", "reference"}, optional
        Checked, as in all functions; the work is NumPy's and the operator's own under either.
    threads : int, optional
        Checked likewise; NumPy's matrix products and the operator's use the threads they are set to.  No bit
        depends on it.

    Returns
    -------
    Estimate

    Raises
    ------
    TypeError
        If `operator` is neither a matrix nor has these products, its dtype or that of its products is not float32 or
        float64, or an argument is of the wrong kind.
    ValueError
        If `operator` has not two axes, its products have wrong shapes, or an option is out of range.

    Notes
    -----
    Vectors, their orthogonalization and all sums are float64; products are computed in the dtype of the operator.  The
    memory needed besides the operator is that of up to ``1.5 * probes * steps`` vectors of either length.  Where
    min(m, n) is below about ``2 * probes * steps``, all singular values cost fewer products than the estimate.

    Probes of random signs make the standard error vanish on a diagonal matrix, where all that is left is the bias.

    References
    ----------
    - Ubaru, Chen, Saad, Fast estimation of tr(f(A)) via stochastic Lanczos quadrature, SIAM J. Matrix Anal. Appl. 38
      (2017).
    - Meyer, Musco, Musco, Woodruff, Hutch++: optimal stochastic trace estimation, SOSA (2021), for the split.
    - Roy, Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO (2007).
    """
    count = arguments.integer("probes", probes, minimum=1)
    most = arguments.integer("steps", steps, minimum=1)
    source = arguments.integer("seed", seed, minimum=0)
    backend_name(backend)
    arguments.thread_count(threads)
    matrix = read_operator(operator)

    if matrix.columns == 0:
        nothing = np.empty((count, 0))
        return _unknown(matrix, nothing, effective_rank=0.0)
    with np.errstate(all="ignore"):
        try:
            return _estimate(matrix, count, min(most, matrix.columns), source)
        except NonFiniteError:
            return _unknown(matrix, np.full((count, 1), math.nan), effective_rank=math.nan)


def _estimate(operator: Operator, probes: int, steps: int, seed: int) -> Estimate:
    budget = min(int(_SHARE * operator.columns), probes * steps // 2)
    top = TopPart(np.empty(0), np.empty((0, operator.rows)), np.empty((0, operator.columns)))
    # Signs have no variance where the operator is diagonal.
    start = 2.0 * _generator(seed, 0).integers(0, 2, (probes, operator.columns), np.int8) - 1.0
    for stream in itertools.count(1):
        steps = min(steps, operator.columns - len(top.values))
        lanczos = Bidiagonalization(operator, start, steps, top)
        lanczos.advance(min(_LOOK, steps))
        more = _worthwhile(lanczos.quadrature(_LOOK), top.values, budget, probes * (2 * steps - 1))
        if not more:
            break
        rng = _generator(seed, stream)
        found = next_part(operator, more, rng, top)
        if not len(found.values):
            break
        top = top.extended(found)
        budget -= len(found.values)
        # The choice of the top part rests on the probes before, so they cannot serve for the rest as well. Normal
        # vectors stay uniform in direction under the projection.
        start = rng.standard_normal((probes, operator.columns))
    lanczos.advance(steps)
    return _conclude(operator, lanczos, top.values, steps)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng((seed, stream))


def _worthwhile(rest: Measure, known: Floats, budget: int, products: int) -> int:
    """Return how many more of the largest singular values to compute, up to `budget`; 0 where quadrature does as well.

    A probe's estimate of a sum of f over some values has variance 2 sum (f - mean f)² over them.  What counts is that
    of the rest times the products it all takes, `products` of them for the quadrature.
    """
    total, entropic = (float(np.mean(sums)) for sums in rest.including(known).sums())
    if total == 0.0:
        return 0
    order = np.argsort(-rest.nodes, axis=None)
    nodes = rest.nodes.ravel()[order]
    counts = rest.weights.ravel()[order] * (rest.size / len(rest.nodes))
    influence = relative_influence(nodes, times_log(nodes), total, entropic)
    moments = np.stack([counts, counts * influence, counts * influence**2])
    # Column j of what is left: the sums over all nodes but the first j.
    left = np.append(np.cumsum(moments[:, ::-1], axis=1)[:, ::-1], np.zeros((3, 1)), axis=1)
    spread = left[2] - np.divide(left[1] ** 2, left[0], out=np.zeros_like(left[0]), where=left[0] > 0)
    variance = 2.0 / len(rest.nodes) * np.maximum(spread, 0.0) + _PRECISION**2
    taken = np.ceil(np.append(0.0, np.cumsum(counts))).astype(np.int64)
    price = np.where(taken > 0, products + products_for(taken), products)
    cost = np.where(taken <= budget, variance * price, np.inf)
    fewest = int(np.argmax(cost <= _SLACK * np.min(cost)))
    return int(taken[fewest]) if _GAIN * cost[fewest] < cost[0] else 0


def _conclude(operator: Operator, lanczos: Bidiagonalization, top: Floats, steps: int) -> Estimate:
    seen = lanczos.quadrature(steps).including(top)
    rank = seen.effective_rank()
    before = lanczos.quadrature(steps - 1).including(top).effective_rank() if steps > 1 else math.nan
    largest = float(np.max(seen.nodes))
    return Estimate(
        effective_rank=rank,
        stable_rank=seen.stable_rank(),
        log_max=math.log(largest) + operator.exponent * math.log(2.0) if largest else -math.inf,
        standard_error=seen.standard_error(),
        method="top+lanczos" if len(top) else "lanczos",
        bias_check=rank - before,
        applications=operator.applications,
        full_rank=operator.columns,
        nodes=np.ldexp(seen.nodes, operator.exponent),
        weights=seen.weights,
    )


def _unknown(operator: Operator, nodes: Floats, effective_rank: float) -> Estimate:
    return Estimate(
        effective_rank=effective_rank,
        stable_rank=math.nan,
        log_max=math.nan,
        standard_error=math.nan,
        method="lanczos",
        bias_check=math.nan,
        applications=operator.applications,
        full_rank=operator.columns,
        nodes=nodes,
        weights=nodes.copy(),
    )
