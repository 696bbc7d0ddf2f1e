"""The decoder, forward and backward: every residual site and the completed derivative of the mean loss there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Floats, Indices
from depthgauge.studies.decoder.attention import Attention, Gradients, Rotation
from depthgauge.studies.decoder.feed_forward import FeedForward
from depthgauge.studies.decoder.head import mean_cross_entropy
from depthgauge.studies.decoder.parameters import Parameters
from depthgauge.studies.decoder.rms_norm import RmsNorm
from depthgauge.studies.decoder.sequence import Tokens, Validity, read_sequence


class Step(Protocol):
    """One residual addition: from the state at a site to that at the next, and back."""

    def forward(self, h: Array) -> tuple[Array, float, Any]:
        """Return the next state, the RMS of the branch's output, and the tape."""

    def vjp(self, tape: Any, g: Array, *, gradients: bool) -> tuple[Array, Gradients]:
        """Return the derivative at the state before, and those of the step's parameters."""


@dataclass(frozen=True, eq=False, repr=False)
class LossDerivative:
    """The mean loss of one sequence and its derivatives; T stands for the valid positions.

    Attributes
    ----------
    mean_loss : float
        Mean natural-log cross entropy.
    states : ndarray, shape (2L+1, T, d)
        The state at every residual site.
    adjoints : ndarray, shape (2L+1, T, d)
        The derivative of the mean loss with respect to each, all later paths summed.
    branch_rms : ndarray, shape (2L,)
        RMS of the output of every branch, before it is added.
    gradients : dict of str to ndarray, or None
        Derivatives with respect to the stored parameters, by name, in their order.
    """

    mean_loss: float
    states: Floats
    adjoints: Floats
    branch_rms: Floats
    gradients: Gradients | None

    def __repr__(self) -> str:
        return f"LossDerivative(mean_loss={self.mean_loss:.6g}, states={list(self.states.shape)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; arrays stay NumPy arrays, not copied, and absent gradients are left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


def loss_derivative(
    parameters: Parameters,
    input_ids: Tokens,
    target_ids: Tokens,
    valid: Validity = None,
    *,
    gradients: bool = True,
    backend: str | None = None,
    threads: int | None = None,
) -> LossDerivative:
    """Run a decoder forward and backward: its mean loss, with derivatives at every site and of every parameter.

    Parameters
    ----------
    parameters : Parameters
        The decoder.
    input_ids, target_ids, valid
        The sequence; see `observe`.
    gradients : bool
        Whether to find the derivatives of the parameters, which take as much memory as they do.
    backend : {"native", "reference"}, optional
        What computes the feed-forward branches; see `depthgauge.forward`.
    threads : int, optional
        How many threads it may use; attention uses those of NumPy.

    Returns
    -------
    LossDerivative

    Raises
    ------
    LayoutError
        If the parameters are blank, or an array no longer has its shape.
    EmptyValidityError, ValueError, TypeError
        As for `observe`.
    """
    arguments.instance("parameters", parameters, Parameters).check_layout()
    gradients = arguments.flag("gradients", gradients)
    inputs, targets = read_sequence(parameters.config, input_ids, target_ids, valid)
    # What leaves the range of float64 is found by its value, not by a warning.
    with np.errstate(all="ignore"):
        steps = residual_steps(parameters, len(inputs), backend=backend, threads=threads)
        states, branch_rms, tapes = _forward(steps, parameters["embedding.weight"][inputs])
        loss, g, found = final_loss(parameters, states[-1], targets, gradients=gradients)
        adjoints = [g]
        for step in reversed(steps):
            g, of_step = step.vjp(tapes.pop(), g, gradients=gradients)
            adjoints.append(g)
            found |= of_step
        if gradients:
            np.add.at(found["embedding.weight"], inputs, g)
    return LossDerivative(
        mean_loss=loss,
        states=np.stack(states),
        adjoints=np.stack(adjoints[::-1]),
        branch_rms=np.array(branch_rms),
        gradients={name: found[name] for name in parameters} if gradients else None,
    )


def residual_steps(
    parameters: Parameters, positions: int, *, backend: str | None = None, threads: int | None = None
) -> list[Step]:
    """Return the 2L residual additions of a decoder, in order, for sequences of `positions`."""
    config = parameters.config
    rotation = Rotation.of(config, positions)
    steps: list[Step] = []
    for block in range(config.layers):
        steps.append(Attention(config, parameters, block, rotation))
        steps.append(FeedForward(config, parameters, block, backend=backend, threads=threads))
    return steps


def final_loss(
    parameters: Parameters, h: Array, targets: Indices, *, gradients: bool
) -> tuple[float, Array, Gradients]:
    """Return the mean loss of the last state, its derivative there, and those of the final norm and the embedding."""
    gain, embedding = parameters["final_norm.gain"], parameters["embedding.weight"]
    norm = RmsNorm.of(h, parameters.config.rms_epsilon)
    loss, g_y, g_embedding = mean_cross_entropy(norm.value * gain, embedding, targets, gradients=gradients)
    found: Gradients = {}
    if g_embedding is not None:
        found = {"final_norm.gain": np.sum(g_y * norm.value, axis=0), "embedding.weight": g_embedding}
    return loss, norm.vjp(g_y * gain), found


def _forward(steps: Sequence[Step], h: Array) -> tuple[list[Array], list[float], list[Any]]:
    states, branch_rms, tapes = [h], [], []
    for step in steps:
        h, rms, tape = step.forward(h)
        states.append(h)
        branch_rms.append(rms)
        tapes.append(tape)
    return states, branch_rms, tapes
