"""Lines and contours fitted to measured ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Floats

if TYPE_CHECKING:
    import xarray


def slope(x: npt.ArrayLike, y: npt.ArrayLike, least: int = 3) -> float:
    """Return the slope of the least-squares line through the points whose y is finite; NaN for fewer than `least`."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    finite = np.isfinite(y)
    if np.count_nonzero(finite) < least:
        return float("nan")
    x, y = x[finite] - x[finite].mean(), y[finite] - y[finite].mean()
    return float(np.dot(x, y) / np.dot(x, x))


def crossing(x: npt.ArrayLike, falling: npt.ArrayLike, level: float) -> float:
    """Return where a falling curve passes a level, by linear interpolation; NaN where it does not within its ends."""
    x, y = np.asarray(x, np.float64), np.minimum.accumulate(np.asarray(falling, np.float64))
    if not y[-1] <= level <= y[0]:
        return float("nan")
    return float(np.interp(level, y[::-1], x[::-1]))


def _smooth_crossing(x: Floats, falling: Floats, level: float) -> float:
    """Return the same for shares of a whole and points far apart.

    It goes by a monotone cubic (Fritsch & Carlson 1980) of x over log(share / (1 - share)), which is nearly straight
    where x is the logarithm of a strength.
    """
    from scipy.interpolate import PchipInterpolator
    from scipy.special import logit

    share = np.minimum.accumulate(np.clip(falling, 1e-12, 1 - 1e-12))
    falls = np.append(True, np.diff(share) < 0)
    x, share = x[falls], share[falls]
    if len(x) < 2 or not share[-1] <= level <= share[0]:
        return float("nan")
    return float(PchipInterpolator(logit(share[::-1]), x[::-1])(logit(level)))


def contour_exponent(strengths: npt.ArrayLike, depths: npt.ArrayLike, ranks: npt.ArrayLike, level: float) -> float:
    """Return s of the contour ``strength ~ depth**s`` on which the rank has one level.

    Parameters
    ----------
    strengths : array_like, shape (P,)
        Of the branches, ascending.
    depths : array_like, shape (D,)
    ranks : array_like, shape (P, D)
        Falling along the first axis.
    level : float

    Returns
    -------
    float
        The slope of log strength over log depth, through the depths where the level is passed; NaN for fewer than 3.
    """
    logs = np.log(np.asarray(strengths, np.float64))
    passed = [_smooth_crossing(logs, column, level) for column in np.asarray(ranks, np.float64).T]
    return slope(np.log(np.asarray(depths, np.float64)), passed)


def contour_exponents(rank: xarray.DataArray, level: float) -> xarray.DataArray:
    """Return `contour_exponent` of ranks that have dims strength and depth, one for each index of the others."""
    import xarray

    def exponent(ranks: Floats) -> float:
        return contour_exponent(rank["strength"].values, rank["depth"].values, ranks, level)

    found: xarray.DataArray = xarray.apply_ufunc(
        exponent, rank, input_core_dims=[["strength", "depth"]], vectorize=True, output_dtypes=[np.float64]
    )
    return found


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Spearman's correlation of the pairs that are finite; NaN for fewer than 3, or where one is constant."""
    from scipy.stats import spearmanr

    pairs = np.stack([np.ravel(x), np.ravel(y)]).astype(np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < 3 or np.any(pairs.min(axis=1) == pairs.max(axis=1)):
        return float("nan")
    return float(spearmanr(*pairs).statistic)


def chance_above(values: npt.ArrayLike, chosen: npt.ArrayLike) -> float:
    """Return the chance that a value of the chosen is above one of the others, ties half: the area under a ROC curve.

    0.5 tells nothing, 1 all; NaN where there are none to compare.
    """
    values, chosen = np.ravel(np.asarray(values, np.float64)), np.ravel(np.asarray(chosen, np.bool_))
    known = np.isfinite(values)
    differences = values[known & chosen][:, None] - values[known & ~chosen]
    return float((np.sign(differences).mean() + 1) / 2) if differences.size else float("nan")
