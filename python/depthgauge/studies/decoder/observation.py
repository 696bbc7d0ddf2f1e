"""What is observed at the residual sites: RMS, ratios to one end, and the band that they are held against."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Floats, float_array
from depthgauge.studies.decoder.errors import NonFiniteRatioError, NonFiniteValueError, NormalizerError
from depthgauge.studies.decoder.model import LossDerivative, loss_derivative
from depthgauge.studies.decoder.parameters import Parameters
from depthgauge.studies.decoder.rms_norm import rms
from depthgauge.studies.decoder.sequence import Tokens, Validity, valid_count

BAND = (0.01, 100.0)
BELOW, WITHIN, ABOVE = "Below band", "Within band", "Above band"


def site_rms(values: npt.ArrayLike, valid: Validity = None) -> float:
    """Return the RMS of one site over the features of its valid positions, safe from overflow and underflow.

    Parameters
    ----------
    values : array_like, shape (T, d)
        One row a position.
    valid : int or array_like of bool, optional
        How many rows are valid, the first ones, or a mask of them with all padding at the end; None means all.
        Padding is never read.

    Returns
    -------
    float

    Raises
    ------
    EmptyValidityError
        If no row is valid.
    NonFiniteValueError
        If a valid value is NaN or infinite.
    ValueError, TypeError
        If a shape or a dtype is wrong.
    """
    rows = float_array("values", values)
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"values must have shape (T, d) with d >= 1; got {rows.shape}")
    rows = rows[: valid_count(valid, len(rows))]
    if not np.isfinite(rows).all():
        raise NonFiniteValueError("values has a NaN or an infinity at a valid position")
    return rms(rows)


def site_ratios(rms: npt.ArrayLike, normalizer: int) -> Floats:
    """Return RMS values over the one at index `normalizer`, as they are: nothing is added to a divisor.

    Parameters
    ----------
    rms : array_like, shape (S,)
    normalizer : int
        Index of the RMS that the others are taken to: 0, the input, for activations; -1, the terminal site, for
        adjoints.

    Returns
    -------
    ndarray, shape (S,)

    Raises
    ------
    NormalizerError
        If the normalizer is zero, negative, NaN or infinite.
    NonFiniteRatioError
        If a ratio is NaN or infinite.
    ValueError, TypeError
        If `rms` is not one row of floats, or `normalizer` no index of it.
    """
    values = float_array("rms", rms).astype(np.float64)
    if values.ndim != 1:
        raise ValueError(f"rms must have shape (S,); got {values.shape}")
    if not arguments.integer("normalizer", normalizer, minimum=-len(values)) < len(values):
        raise ValueError(f"normalizer={normalizer} must be the index of one of {len(values)} sites")
    divisor = float(values[normalizer])
    if not 0 < divisor < math.inf:
        raise NormalizerError(f"the RMS at site {normalizer % len(values)} is {divisor}, so no ratio to it exists")
    with np.errstate(over="ignore"):
        ratios = values / divisor
    for site in np.flatnonzero(~np.isfinite(ratios)):
        raise NonFiniteRatioError(f"the ratio at site {site} is {ratios[site]}: {values[site]} to {divisor}")
    return ratios


def classify(ratio: float) -> str:
    """Return where an unrounded ratio lies to `BAND`: "Below band", "Within band" (ends included) or "Above band".

    Raises
    ------
    NonFiniteRatioError
        If it is NaN or infinite.
    TypeError
        If it is not a number.
    """
    try:
        # A float, for beside a NumPy scalar of less precision the band itself would be rounded.
        value = arguments.real("ratio", ratio)
    except ValueError as error:
        raise NonFiniteRatioError(str(error)) from None
    low, high = BAND
    return BELOW if value < low else ABOVE if value > high else WITHIN


@dataclass(frozen=True, eq=False, repr=False)
class Observation:
    """The residual sites of one decoder, from `observe`; S = 2L + 1.

    Attributes
    ----------
    labels : tuple of str
        Names of the sites.
    mean_loss : float
        Mean natural-log cross entropy.
    activation_rms, adjoint_rms : ndarray, shape (S,)
        RMS of the state, and of the completed derivative of the mean loss with respect to it.
    activation_ratio, adjoint_ratio : ndarray, shape (S,)
        The former to that of the input, the latter to that of the last site.
    branch_rms : ndarray, shape (S-1,)
        RMS of every branch's output before it is added; reported, never classified.
    """

    labels: tuple[str, ...]
    mean_loss: float
    activation_rms: Floats
    adjoint_rms: Floats
    activation_ratio: Floats
    adjoint_ratio: Floats
    branch_rms: Floats

    @property
    def activation_status(self) -> tuple[str, ...]:
        """Where each activation ratio lies; see `classify`."""
        return tuple(classify(float(ratio)) for ratio in self.activation_ratio)

    @property
    def adjoint_status(self) -> tuple[str, ...]:
        """Where each adjoint ratio lies; see `classify`."""
        return tuple(classify(float(ratio)) for ratio in self.adjoint_ratio)

    @property
    def within_band(self) -> bool:
        """Whether all ratios are within the band."""
        return {*self.activation_status, *self.adjoint_status} == {WITHIN}

    @property
    def branch_gain(self) -> Floats:
        """RMS of every branch's output over that of the state it is added to, shape (S-1,); never classified."""
        return _gain(self.branch_rms, self.activation_rms[:-1])

    @property
    def activation_gain(self) -> Floats:
        """RMS of the state after each addition over that before, shape (S-1,); never classified."""
        return _gain(self.activation_rms[1:], self.activation_rms[:-1])

    @property
    def adjoint_gain(self) -> Floats:
        """RMS of the adjoint before each addition over that after, shape (S-1,); never classified."""
        return _gain(self.adjoint_rms[:-1], self.adjoint_rms[1:])

    def __repr__(self) -> str:
        return (
            f"Observation(sites={len(self.labels)}, mean_loss={self.mean_loss:.6g}, "
            f"max_activation_ratio={self.activation_ratio.max():.3g}, "
            f"max_adjoint_ratio={self.adjoint_ratio.max():.3g}, within_band={self.within_band})"
        )

    def summary(self) -> dict[str, Any]:
        """Return the loss, the normalizers and the extremes of the ratios as plain data."""
        return {
            "mean_loss": self.mean_loss,
            "input_activation_normalizer": float(self.activation_rms[0]),
            "terminal_adjoint_normalizer": float(self.adjoint_rms[-1]),
            "min_activation_ratio": float(self.activation_ratio.min()),
            "max_activation_ratio": float(self.activation_ratio.max()),
            "min_adjoint_ratio": float(self.adjoint_ratio.min()),
            "max_adjoint_ratio": float(self.adjoint_ratio.max()),
            "within_band": self.within_band,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: the summary, one row a site, one row a branch."""
        columns = {
            "label": self.labels,
            "activation_rms": self.activation_rms.tolist(),
            "activation_ratio": self.activation_ratio.tolist(),
            "activation_status": self.activation_status,
            "adjoint_rms": self.adjoint_rms.tolist(),
            "adjoint_ratio": self.adjoint_ratio.tolist(),
            "adjoint_status": self.adjoint_status,
        }
        gains = {
            "after": self.labels[1:],
            "branch_rms": self.branch_rms.tolist(),
            "branch_gain": self.branch_gain.tolist(),
            "activation_gain": self.activation_gain.tolist(),
            "adjoint_gain": self.adjoint_gain.tolist(),
        }
        return {
            **self.summary(),
            "sites": [{"site": site} | row for site, row in enumerate(_rows(columns))],
            "branches": list(_rows(gains)),
        }


def observe(
    parameters: Parameters,
    input_ids: Tokens,
    target_ids: Tokens,
    valid: Validity = None,
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> Observation:
    """Observe every residual site of a decoder on one sequence; nothing is drawn, added or changed.

    Parameters
    ----------
    parameters : Parameters
        The decoder.
    input_ids, target_ids : array_like of int, shape (T,)
        Tokens, and those to predict at each; whole floats pass.
    valid : int or array_like of bool, optional
        How many positions are valid, the first ones, or a mask of them with all padding at the end; None means all.
        Padding is cut before the forward pass, and never read.
    backend : {"native", "reference"}, optional
        What computes the feed-forward branches; see `depthgauge.forward`.
    threads : int, optional
        How many threads it may use; attention uses those of NumPy.

    Returns
    -------
    Observation

    Raises
    ------
    LayoutError
        If the parameters are blank, or an array no longer has its shape.
    EmptyValidityError
        If no position is valid.
    NonFiniteValueError
        If a token, a state, the mean loss or an adjoint is NaN or infinite.  The message names the site: of states the
        first, of adjoints the last, which is where each pass met it.
    NormalizerError
        If the input state or the terminal adjoint is all zero.
    NonFiniteRatioError
        If a ratio leaves the range of float64.
    ValueError
        If lengths differ, a token is not in the vocabulary, or there are too many positions.
    TypeError
        If an argument is of the wrong kind.
    """
    found = loss_derivative(parameters, input_ids, target_ids, valid, gradients=False, backend=backend, threads=threads)
    return _observation(parameters.config.site_labels(), found)


def _observation(labels: tuple[str, ...], found: LossDerivative) -> Observation:
    """Return what is observed of states and adjoints, which must be finite and have an end to be taken to."""
    activation_rms = np.array(_labelled_rms("state", zip(labels, found.states, strict=True)))
    if not math.isfinite(found.mean_loss):
        raise NonFiniteValueError(f"the mean loss is {found.mean_loss}, though all states are finite")
    # In the order of the pass, so that an error names the site where it began.
    backward = _labelled_rms("adjoint", zip(labels[::-1], found.adjoints[::-1], strict=True))
    adjoint_rms = np.array(backward[::-1])
    return Observation(
        labels=labels,
        mean_loss=found.mean_loss,
        activation_rms=activation_rms,
        adjoint_rms=adjoint_rms,
        activation_ratio=_ratios("state", activation_rms, 0),
        adjoint_ratio=_ratios("adjoint", adjoint_rms, -1),
        branch_rms=found.branch_rms,
    )


def _labelled_rms(what: str, sites: Iterable[tuple[str, Floats]]) -> list[float]:
    found = []
    for label, values in sites:
        try:
            found.append(site_rms(values))
        except NonFiniteValueError:
            raise NonFiniteValueError(f"the {what} at site {label!r} has a NaN or an infinity") from None
    return found


def _ratios(what: str, rms: Floats, normalizer: int) -> Floats:
    try:
        return site_ratios(rms, normalizer)
    except (NormalizerError, NonFiniteRatioError) as error:
        raise type(error)(f"of the {what}s, {error}") from None


def _gain(after: Floats, before: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(after / before)


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
