"""Singular values of products of large Gaussian matrices, by free probability.

The Jacobian of a branch with two matrices is J = A D B: A, d by m, and B, m by d, have independent Gaussian entries,
and D is diagonal, with entries phi'(z).  As d and m grow at one ratio r = m/d, A and B are free of each other and of D,
whose z decides on one direction of A alone.  With H the law of the squares on the diagonal of D, and entries of
variance 1/d in A and 1/m in B, the law of the squared singular values of J has the S-transform (Voiculescu 1987)

    S(z) = S_H(z) * 1 / (1 + r z) * r / (1 + r z)

in dimension m: each Gaussian factor has that of Marchenko and Pastur's law.  With H a mask, 1 with probability p and
else 0, this is a cubic for the resolvent, with c = p r the one parameter: the product of two Gaussian matrices with an
inner dimension of c d.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Floats

# The variable of integration, as far as anything is left, and so fine that the kink at full rank costs 1e-4 at most.
_SIGMAS = np.exp(np.linspace(-35.0, 35.0, 3001))


class FreeProduct:
    """Two large Gaussian matrices with a diagonal one between.

    Parameters
    ----------
    squares : array_like, shape (K,)
        The squares on the diagonal.
    weights : array_like, shape (K,)
        Their probabilities.
    """

    def __init__(self, squares: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        squares, weights = np.asarray(squares, np.float64), np.asarray(weights, np.float64)
        # sigma -> v, the moment generating function of H at -sigma, sign changed; and sigma dv/dsigma.
        shares = np.empty((2, len(_SIGMAS)))
        for number, sigma in enumerate(_SIGMAS):
            scaled = squares * sigma
            kept = weights * scaled / (1 + scaled)
            # Not by BLAS, whose threads would wait for one another at every node.
            shares[:, number] = np.sum(kept), np.sum(kept / (1 + scaled))
        self._values, self._slopes = shares

    @classmethod
    def masked(cls, share: float = 1.0) -> FreeProduct:
        """Return the product with a mask in between, of which a share is 1."""
        return cls([0.0, 1.0], [1 - share, share])

    def effective_rank(self, ratio: float) -> float:
        """Return the effective rank over d of the product with inner dimension m = `ratio` * d.

        It is E[s] exp(-E[s ln s] / E[s]) over singular values s.  With t > 0 and u(t) = E[s² / (s² + t)], both means
        are integrals of the resolvent left of the spectrum, where all is real,

            E[s] = 2/pi * integral of sqrt(t) du,    E[s ln s] = 1/pi * integral of sqrt(t) (ln t - 2) du,

        u from 0 to the share of s that are not 0.  A free product gives t as a function of u: with S as above,
        t = (1 - z')/(z' S(-z')) with z' = u / r in dimension m.
        """
        u = ratio * self._values
        root = np.maximum(1 - u, 0) / np.sqrt(ratio * _SIGMAS)
        step = ratio * self._slopes * np.log(_SIGMAS[1] / _SIGMAS[0])  # du
        log = 2 * np.log(np.where(root > 0, root, 1))
        mean = 2 / np.pi * float(np.sum(root * step))
        mean_log = 1 / np.pi * float(np.sum(root * (log - 2) * step))
        return mean * float(np.exp(-mean_log / mean))


def marchenko_pastur(x: npt.ArrayLike, ratio: float) -> Floats:
    """Return the density of the squared singular values of a large d by (ratio * d) Gaussian matrix of variance 1/d.

    For ratio < 1 it integrates to ratio: the other squares are 0.
    """
    x = np.asarray(x, np.float64)
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    inside = np.sqrt(np.maximum((high - x) * (x - low), 0))
    density: Floats = np.divide(inside, 2 * np.pi * x, out=np.zeros_like(inside), where=inside > 0)
    return density


def marchenko_pastur_below(x: npt.ArrayLike, ratio: float) -> Any:
    """Return the share of those squares that are at most x."""
    # In the angle the density is bounded and smooth, its square roots at both edges gone.
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    angles = (np.arange(4000) + 0.5) * (np.pi / 4000)
    squares = (high + low) / 2 - (high - low) / 2 * np.cos(angles)
    shares = marchenko_pastur(squares, ratio) * (high - low) / 2 * np.sin(angles) * (np.pi / 4000)
    zeros = max(1 - ratio, 0.0)
    edges = (high + low) / 2 - (high - low) / 2 * np.cos(np.arange(4001) * (np.pi / 4000))
    below = zeros + np.concatenate([[0.0], np.cumsum(shares)])
    return np.interp(np.asarray(x, np.float64), edges, below, left=zeros)
