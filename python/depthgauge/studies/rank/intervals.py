"""Means over seeds with 95 % intervals, and what they are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval, by Student's t; without bounds (nan) for a single seed."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Interval:
        """Return the interval of one number a seed; seeds where it is NaN, such as a fit without data, are left out."""
        values = np.asarray(samples, np.float64).ravel()
        values = values[~np.isnan(values)]
        if not len(values):
            return cls(math.nan, math.nan, math.nan, 0)
        mean, half = (
            float(values.mean()),
            half_width(float(values.std(ddof=1)) if len(values) > 1 else math.nan, len(values)),
        )
        return cls(mean, mean - half, mean + half, len(values))


def half_width(deviation: float, seeds: int) -> float:
    """Return half the width of the t interval of a mean over seeds from their standard deviation."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, seeds - 1)) * deviation / math.sqrt(seeds) if seeds > 1 else math.nan


def mean_and_half(samples: xarray.DataArray) -> tuple[xarray.DataArray, xarray.DataArray]:
    """Return the mean over the dim seed and half the width of its interval, each point over the seeds that are not NaN.

    Half the width is NaN where there is but one.
    """
    mean, seeds = samples.mean("seed"), samples.count("seed")
    factor = seeds.copy(data=np.reshape([half_width(1.0, int(count)) for count in seeds.values.flat], seeds.shape))
    squares = ((samples - mean) ** 2).sum("seed") / (seeds - 1).where(seeds > 1)
    return mean, squares**0.5 * factor


def plus_minus(samples: xarray.DataArray, mean_digits: str = ".3f", half_digits: str = ".3f") -> list[str]:
    """Return samples of seed and one more dim as a row of a table: each mean with half the width of its interval."""
    mean, half = mean_and_half(samples)
    return [f"{m:{mean_digits}} ± {h:{half_digits}}" for m, h in zip(mean.values, half.values, strict=True)]


@dataclass(frozen=True)
class Expected:
    """A figure to hold a measurement against, published or predicted by theory; a range, for figures are rounded."""

    text: str
    low: float
    high: float
    source: Literal["published", "theory"] = "published"

    @classmethod
    def rounded(cls, text: str, source: Literal["published", "theory"] = "published") -> Expected:
        """Return what a number printed with so many digits may have been."""
        half = 0.5 * 10.0 ** -len(text.partition(".")[2])
        return cls(text, float(text) - half, float(text) + half, source)

    @classmethod
    def between(cls, low: float, high: float, source: Literal["published", "theory"] = "published") -> Expected:
        """Return a range."""
        return cls(f"{low:g} to {high:g}", low, high, source)

    @classmethod
    def at_most(cls, high: float, source: Literal["published", "theory"] = "published") -> Expected:
        """Return an upper bound."""
        return cls(f"at most {high:g}", -math.inf, high, source)

    @classmethod
    def at_least(cls, low: float, source: Literal["published", "theory"] = "published") -> Expected:
        """Return a lower bound."""
        return cls(f"at least {low:g}", low, math.inf, source)


@dataclass(frozen=True)
class Finding:
    """One number that a study finds, and what it is held against, if anything."""

    name: str
    measured: Interval
    expected: Expected | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether interval (the mean, where there is none) and expected range overlap.

        None without an expectation, and where nothing was found to hold it against.
        """
        if self.expected is None or math.isnan(self.measured.mean):
            return None
        low, high = self.measured.low, self.measured.high
        if math.isnan(low):
            low = high = self.measured.mean
        return bool(low <= self.expected.high and self.expected.low <= high)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        found: dict[str, Any] = {
            "name": self.name,
            "mean": self.measured.mean,
            "low": self.measured.low,
            "high": self.measured.high,
            "seeds": self.measured.seeds,
        }
        if self.expected is not None:
            found |= {"expected": self.expected.text, "source": self.expected.source, "agrees": self.agrees}
        return found
