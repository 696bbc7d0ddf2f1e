"""Singular values as several random probes see them, and the effective rank by it with its standard error."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from depthgauge._common.arrays import Floats


class Measure(NamedTuple):
    """A quadrature over n singular values for each of P probes; each row of weights sums to one."""

    nodes: Floats  # (P, K)
    weights: Floats
    size: int  # n

    def including(self, values: Floats) -> Measure:
        """Return the measure of the singular values seen together with `values`, known exactly."""
        probes, size = len(self.nodes), self.size + len(values)
        return Measure(
            np.hstack([np.tile(values, (probes, 1)), self.nodes]),
            np.hstack([np.full((probes, len(values)), 1.0 / size), self.weights * (self.size / size)]),
            size,
        )

    def sums(self) -> tuple[Floats, Floats]:
        """Return each probe's estimates of sum(s) and sum(s ln s), shape (P,)."""
        total = self.size * np.sum(self.weights * self.nodes, axis=1)
        return total, self.size * np.sum(self.weights * times_log(self.nodes), axis=1)

    def effective_rank(self) -> float:
        """Return exp(-sum p ln p), p = s / sum(s), by the means of the two sums over probes."""
        total, entropic = (float(np.mean(sums)) for sums in self.sums())
        if total == 0.0:
            return 0.0
        # np.clip passes a NaN, which min and max may not.
        return float(np.clip(math.exp(math.log(total) - entropic / total), 1.0, self.size))

    def standard_error(self) -> float:
        """Return that of the effective rank, to first order in the errors of the two sums; NaN for one probe."""
        probes = len(self.nodes)
        if probes < 2:
            return math.nan
        total, entropic = self.sums()
        if not np.any(total):
            return 0.0
        deviations = relative_influence(total, entropic, float(np.mean(total)), float(np.mean(entropic)))
        return self.effective_rank() * float(np.std(deviations, ddof=1)) / math.sqrt(probes)

    def stable_rank(self) -> float:
        """Return sum(s²) / max(s)²."""
        largest = np.max(self.nodes)
        if largest == 0.0:
            return 0.0
        squares = self.size * np.sum(self.weights * (self.nodes / largest) ** 2, axis=1)
        return float(np.clip(np.mean(squares), 1.0, self.size))


def relative_influence(s: Floats, s_log_s: Floats, total: float, entropic: float) -> Floats:
    """Return the relative change of the effective rank when s and s ln s are added to their sums, to first order."""
    return (s * (1.0 + entropic / total) - s_log_s) / total


def times_log(s: Floats) -> Floats:
    """Return s ln s, 0 at 0."""
    return s * np.log(np.where(s == 0.0, 1.0, s))
