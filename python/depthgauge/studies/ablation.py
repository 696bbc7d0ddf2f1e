"""The transport ablation: which of six initialized networks still carry a signal and a gradient.

Five stacks of the same width and depth, and a shallow control, are pushed
forward from one Gaussian batch and backward from one Gaussian gradient.  They
differ in activation, residual branch and norm alone.  What comes out says how
well a network transports at initialization; it says nothing about how well the
network trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import depthgauge as dg
from depthgauge._common import arguments
from depthgauge._common.arrays import Floats

# The published wording, kept so that a run with the default sizes can be compared with the published file whole.
INTERPRETATION = "initialisation-time transport diagnostic, not a claim about final accuracy"
BRANCH = "W2(activation(W1(x)))"

SHALLOW_DEPTH = 8
EPS = 1e-8
# Sampled depths are multiples of a twelfth of the stack, rounded down.
SAMPLED_TWELFTHS = (0, 1, 2, 4, 6, 8, 10, 12)
# The variance gain that keeps the mean square through the up matrix and the activation.
GAIN_OF = {"relu": 2.0, "tanh": 1.0}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One network of the ablation.

    Attributes
    ----------
    name : str
        The name in tables and JSON.
    activation : {"relu", "tanh"}
        The activation of the branch.
    residual : {"none", "1", "1/sqrt(depth)"}
        The scale of the residual branch; "none" is a plain stack, with no skip path.
    pre_norm : bool
        Whether the branch reads the RMS-normalized state.
    fixed_depth : int or None
        The depth where it does not follow the depth asked for.
    """

    name: str
    activation: Literal["relu", "tanh"]
    residual: Literal["none", "1", "1/sqrt(depth)"] = "none"
    pre_norm: bool = False
    fixed_depth: int | None = None

    def depth(self, deep: int) -> int:
        """Return the number of blocks of this configuration when the deep stacks have `deep`."""
        return deep if self.fixed_depth is None else self.fixed_depth

    def residual_scale(self, depth: int) -> float:
        """Return the scale of the residual branch at `depth` blocks; 0.0 for a plain stack."""
        return {"none": 0.0, "1": 1.0, "1/sqrt(depth)": 1.0 / math.sqrt(depth)}[self.residual]

    def block(self, depth: int) -> dg.Block:
        """Return the block equation of this configuration at `depth` blocks."""
        plain = self.residual == "none"
        return dg.Block(
            activation=self.activation,
            pre_norm="rms" if self.pre_norm else "none",
            skip_scale=0.0 if plain else 1.0,
            branch_scale=1.0 if plain else self.residual_scale(depth),
            eps=EPS,
        )


CONFIGURATIONS = (
    Configuration(name="tanh_xavier_plain", activation="tanh"),
    Configuration(name="relu_he_plain", activation="relu"),
    Configuration(name="relu_residual_unscaled", activation="relu", residual="1"),
    Configuration(name="relu_residual_scaled", activation="relu", residual="1/sqrt(depth)"),
    Configuration(name="relu_prenorm_scaled", activation="relu", residual="1/sqrt(depth)", pre_norm=True),
    Configuration(name="relu_he_plain_shallow", activation="relu", fixed_depth=SHALLOW_DEPTH),
)


@dataclass(frozen=True, eq=False, repr=False)
class Transport:
    """What one configuration did to the signal and to the gradient.

    Attributes
    ----------
    configuration : Configuration
        The network.
    depth : int
        Its number of blocks, L.
    forward_rms, gradient_rms : numpy.ndarray
        RMS of the state and of the gradient at depths 0 (the input) to L, shape (L+1,).
    live_fraction : float
        Share of hidden units that pass a derivative on, averaged over the blocks: z > 0
        for ReLU, a derivative above 0.1 for tanh.
    """

    configuration: Configuration
    depth: int
    forward_rms: Floats
    gradient_rms: Floats
    live_fraction: float

    def __repr__(self) -> str:
        return (
            f"Transport({self.configuration.name}, depth={self.depth}, end_rms={self.end_rms:.3g}, "
            f"drift={self.drift:.3g}, gradient_ratio={self.gradient_ratio:.3g})"
        )

    @property
    def end_rms(self) -> float:
        """RMS of the last state; inf if the states left the range of float64."""
        return _grown(self.forward_rms[0], self.forward_rms[-1])

    @property
    def drift(self) -> float:
        """Largest over smallest RMS of the states; inf if a state is all zero or they left the range of float64."""
        # fmin passes over the NaN that an overflow leaves behind.
        return _ratio(_grown(self.forward_rms[0], self.forward_rms.max()), np.fmin.reduce(self.forward_rms))

    @property
    def gradient_ratio(self) -> float:
        """Gradient RMS at the input over that at the output; inf if the gradient left the range of float64."""
        return _ratio(_grown(self.gradient_rms[-1], self.gradient_rms[0]), self.gradient_rms[-1])

    def summary(self) -> dict[str, Any]:
        """Return the figures of this configuration as plain data."""
        return {
            "configuration": self.configuration.name,
            "depth": self.depth,
            "forward_end_rms": self.end_rms,
            "forward_drift": self.drift,
            "input_to_output_gradient_ratio": self.gradient_ratio,
            "mean_live_derivative_fraction": self.live_fraction,
            "pre_rmsnorm": self.configuration.pre_norm,
            "residual_scale": self.configuration.residual_scale(self.depth),
        }

    def sampled_curves(self) -> dict[str, Any]:
        """Return log10 of both curves at `sampled_depths`, as plain data."""
        layers = sampled_depths(self.depth)
        return {
            "configuration": self.configuration.name,
            "layers": layers,
            "log10_forward_rms": log10(self.forward_rms[layers]).tolist(),
            "log10_gradient_rms": log10(self.gradient_rms[layers]).tolist(),
        }


@dataclass(frozen=True)
class Check:
    """What one configuration must show for the ablation to hold."""

    configuration: str
    statement: str
    holds: Callable[[Transport], bool]


def _stays_bounded(transport: Transport) -> bool:
    return transport.drift < 3.0 and 0.5 < transport.gradient_ratio < 2.0


CHECKS: Mapping[str, Check] = {
    "unscaled_residual_explodes": Check(
        "relu_residual_unscaled",
        "drift and gradient ratio above 1e8",
        lambda transport: transport.drift > 1e8 and transport.gradient_ratio > 1e8,
    ),
    "scaled_prenorm_stays_bounded": Check(
        "relu_prenorm_scaled", "drift below 3 and gradient ratio between 0.5 and 2", _stays_bounded
    ),
    "shallow_control_stays_bounded": Check(
        "relu_he_plain_shallow", "drift below 3 and gradient ratio between 0.5 and 2", _stays_bounded
    ),
    "plain_tanh_fades": Check("tanh_xavier_plain", "end RMS below 0.1", lambda transport: transport.end_rms < 0.1),
}


@dataclass(frozen=True, eq=False, repr=False)
class TransportAblation:
    """The result of `transport_ablation`.

    Attributes
    ----------
    depth, width, batch, seed : int
        What was asked for.
    transports : tuple of Transport
        One a configuration, in the order of `CONFIGURATIONS`.
    """

    depth: int
    width: int
    batch: int
    seed: int
    transports: tuple[Transport, ...]

    def __repr__(self) -> str:
        failed = self.failed_checks()
        return (
            f"TransportAblation(depth={self.depth}, width={self.width}, batch={self.batch}, seed={self.seed}, "
            f"checks={'PASS' if not failed else ', '.join(failed)})"
        )

    def __getitem__(self, configuration: str) -> Transport:
        """Return the transport of the configuration of that name."""
        for transport in self.transports:
            if transport.configuration.name == configuration:
                return transport
        raise KeyError(configuration)

    def failed_checks(self) -> list[str]:
        """Return the names of the checks of `CHECKS` that do not hold; a NaN fails its check."""
        return [name for name, check in CHECKS.items() if not check.holds(self[check.configuration])]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with the curves at the sampled depths.

        Returns
        -------
        dict
            Keys "assumptions", "summary", "sampled_curves" and "checks"; the last is "PASS",
            or a list of the names of the checks that failed.
        """
        return {
            "assumptions": {
                "data": f"{self.batch} synthetic Gaussian examples",
                "width": self.width,
                "deep_blocks": self.depth,
                "branch": BRANCH,
                "terminal_gradient_rms": 1.0,
                "seed": self.seed,
                "interpretation": INTERPRETATION,
            },
            "summary": [transport.summary() for transport in self.transports],
            "sampled_curves": [transport.sampled_curves() for transport in self.transports],
            "checks": self.failed_checks() or "PASS",
        }


def sampled_depths(depth: int) -> list[int]:
    """Return the depths at which curves are sampled, from 0 to `depth`, each once."""
    return sorted({depth * twelfths // 12 for twelfths in SAMPLED_TWELFTHS})


def log10(values: Floats) -> Floats:
    """Return log10 of `values`, -inf at zero, without warnings."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(values)


def transport_ablation(
    depth: int = 96,
    width: int = 64,
    batch: int = 128,
    seed: int = 7,
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> TransportAblation:
    """Push a Gaussian batch and a Gaussian gradient through every configuration, in float64.

    Parameters
    ----------
    depth : int
        Blocks of the deep stacks; the shallow control always has 8.
    width : int
        Features of a state, and units of a hidden layer.
    batch : int
        Examples.
    seed : int
        Seed of the generator, which starts anew for each configuration, so all of them
        see the same input.
    backend : str or None
        The backend that computes; see `depthgauge.forward`.
    threads : int or None
        How many threads it may use; see `depthgauge.forward`.

    Returns
    -------
    TransportAblation

    Raises
    ------
    TypeError
        If a size or the seed is not an integer.
    ValueError
        If `depth`, `width` or `batch` is below 1, or `seed` is negative.
    """
    depth = arguments.integer("depth", depth, minimum=1)
    width = arguments.integer("width", width, minimum=1)
    batch = arguments.integer("batch", batch, minimum=1)
    seed = arguments.integer("seed", seed, minimum=0)
    transports = tuple(
        _transport(configuration, configuration.depth(depth), width, batch, seed, backend, threads)
        for configuration in CONFIGURATIONS
    )
    return TransportAblation(depth, width, batch, seed, transports)


def _transport(
    configuration: Configuration,
    depth: int,
    width: int,
    batch: int,
    seed: int,
    backend: str | None,
    threads: int | None,
) -> Transport:
    x, weights, gradient = _draw(configuration, depth, width, batch, seed)
    block = configuration.block(depth)
    forward = dg.forward(block, weights, x, backend=backend, threads=threads)
    backward = dg.vjp(block, weights, forward, gradient, backend=backend, threads=threads)
    return Transport(
        configuration,
        depth,
        forward_rms=forward.rms,
        gradient_rms=backward.rms,
        live_fraction=float(forward.live_fraction.mean()),
    )


def _draw(
    configuration: Configuration, depth: int, width: int, batch: int, seed: int
) -> tuple[Floats, dg.Weights, Floats]:
    """Draw the input, the weights block by block, and the terminal gradient, which has an RMS of 1.

    The order of the draws is part of the study: the published figures depend on it.
    """
    rng = np.random.default_rng(seed)
    up_deviation = math.sqrt(GAIN_OF[configuration.activation] / width)
    down_deviation = math.sqrt(1.0 / width)
    x = rng.standard_normal((batch, width))
    up = np.empty((depth, width, width))
    down = np.empty((depth, width, width))
    for layer in range(depth):
        up[layer] = rng.standard_normal((width, width)) * up_deviation
        down[layer] = rng.standard_normal((width, width)) * down_deviation
    gradient = rng.standard_normal((batch, width))
    gradient /= np.sqrt(np.mean(gradient**2))
    return x, dg.Weights(up, down), gradient


def _grown(start: float, value: float) -> float:
    """Return `value`, inf for a NaN that came of a finite `start`: past the range, inf - inf follows within a block."""
    return math.inf if math.isnan(value) and math.isfinite(start) else float(value)


def _ratio(numerator: float, denominator: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return float(np.float64(numerator) / np.float64(denominator))
