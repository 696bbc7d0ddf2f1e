"""Initialization as a transaction: prepare, look, complete."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from depthgauge._common import arguments
from depthgauge._common.arrays import Array
from depthgauge.studies.decoder.config import Budget, DecoderConfig
from depthgauge.studies.decoder.errors import (
    AlreadyInitializedError,
    GeneratorMovedError,
    LayoutError,
    ModifiedParameterError,
    NonzeroGradientError,
)
from depthgauge.studies.decoder.parameters import Parameters
from depthgauge.studies.decoder.records import Record
from depthgauge.studies.decoder.rules import Rule, find_rule
from depthgauge.studies.decoder.splitmix import SplitMix64


@dataclass(frozen=True, eq=False, repr=False)
class Initialization:
    """The result of `Preparation.complete`.

    Attributes
    ----------
    parameters : Parameters
        The base values, scaled by the rule.
    control : Parameters
        The same base values, unscaled, in arrays of their own.
    record : Record
        What was done.
    """

    parameters: Parameters
    control: Parameters
    record: Record

    def __repr__(self) -> str:
        return (
            f"Initialization({self.parameters!r}, policy={self.record.policy!r}, factor={self.record.factor:.6g}, "
            f"transformed={len(self.record.transformed)})"
        )


class Preparation:
    """Base values that were drawn, and an initialization that is still to be completed; from `prepare`.

    Dropping one changes nothing: neither the caller's generator nor the caller's parameters.  It holds the base values
    twice, the second time for the control, which also tells whether they were modified.

    Attributes
    ----------
    parameters : Parameters
        The base values; after `complete`, what it made of them.
    rule : Rule
        What `complete` will apply.
    """

    def __init__(self, config: DecoderConfig, rng: SplitMix64, rule: Rule, target: Parameters | None) -> None:
        self.rule = rule
        self._rng, self._before = rng, rng.state
        self.parameters = Parameters(config)
        self.parameters._fill("base", _draw_base(config, rng.copy()))
        self._control = self.parameters.derived("control", {name: a.copy() for name, a in self.parameters.items()})
        self._target = self.parameters if target is None else target

    def complete(self) -> Initialization:
        """Scale the base values, hand them over, and commit the generator's state to the caller.

        All is checked before anything changes.  The scaled arrays are new; all others, and the base values themselves
        where the rule's factors are 1, as at L = 1, are handed over as they are.

        Returns
        -------
        Initialization

        Raises
        ------
        AlreadyInitializedError
            If this was completed before, or the given parameters were filled since.
        GeneratorMovedError
            If the caller's generator was used since.
        LayoutError
            If a base parameter was given another shape.
        ModifiedParameterError
            If a bit of a base parameter changed.
        NonzeroGradientError
            If a parameter carries a gradient that is not zero.
        """
        base, config = self.parameters, self.parameters.config
        if base.stage != "base" or self._target.stage not in ("base", "blank"):
            raise AlreadyInitializedError("this preparation was completed, or its parameters were filled, before")
        if self._rng.state != self._before:
            raise GeneratorMovedError(
                f"the generator was used since it was prepared: its state was {self._before:#018x} and is "
                f"{self._rng.state:#018x}; prepare again"
            )
        base.check_layout()
        for name, array in base.items():
            if not _same_bits(array, self._control[name]):
                raise ModifiedParameterError(name, f"{name} was modified since it was drawn; prepare again")
        for parameters in (base, self._target):
            _refuse_gradients(parameters)

        scaled = {name: base[name] * factor for name, factor in self.rule.transformed(config).items()}
        record = Record.of(config, self.rule, self._before)
        for parameters in (self._target, base):
            parameters._fill("initialized", {**base, **scaled})
        self._rng.state = record.generator_after
        return Initialization(self._target, self._control, record)

    def __repr__(self) -> str:
        return f"Preparation({self.parameters!r}, rule={self.rule.id!r})"


def prepare(
    config: DecoderConfig,
    budget: Budget,
    rng: SplitMix64,
    *,
    rule: str = "depth",
    parameters: Parameters | None = None,
) -> Preparation:
    """Draw the base values of a decoder from a copy of the caller's generator.

    Matrices are Xavier uniform, ``limit * (2 * u - 1)`` with ``limit = sqrt(6 / (fan_in + fan_out))`` (Glorot & Bengio
    2010), drawn in the order of `DecoderConfig.shapes` and in C order; the embedding's fans are vocabulary and width.
    Gains are 1 and draw nothing.

    Parameters
    ----------
    config : DecoderConfig
        The dimensions.
    budget : Budget
        What they must fit, checked before any array is made.
    rng : SplitMix64
        The caller's generator; `Preparation.complete` moves it, this does not.
    rule : {"depth", "none", "gpt2", "zero", "fixup"}
        What `complete` scales; see `RULES`.
    parameters : Parameters, optional
        Blank parameters of the same configuration for `complete` to fill; None makes new ones.

    Returns
    -------
    Preparation

    Raises
    ------
    AlreadyInitializedError
        If `parameters` are not blank.
    BudgetExceededError
        If the decoder does not fit.
    LayoutError
        If `parameters` have another configuration.
    ValueError
        If `rule` is unknown.
    TypeError
        If an argument is of the wrong kind.
    """
    arguments.instance("config", config, DecoderConfig)
    arguments.instance("budget", budget, Budget)
    arguments.instance("rng", rng, SplitMix64)
    chosen = find_rule(rule)
    if parameters is not None:
        if arguments.instance("parameters", parameters, Parameters).stage != "blank":
            raise AlreadyInitializedError(
                f"parameters are {parameters.stage} already; pass blank ones, as Parameters(config) makes"
            )
        if parameters.config != config:
            raise LayoutError("parameters have another configuration than config")
    budget.check(config)
    return Preparation(config, rng, chosen, parameters)


def apply_rule(rule: str, control: Parameters) -> Parameters:
    """Return the control's values under another rule, for comparison; what the rule leaves alone is shared, not copied.

    Parameters
    ----------
    rule : str
        Id of a rule of `RULES`.
    control : Parameters
        The unscaled control of an `Initialization`.

    Returns
    -------
    scaled : Parameters
        Of stage "initialized".

    Raises
    ------
    AlreadyInitializedError
        If `control` holds anything but unscaled base values.
    ValueError
        If `rule` is unknown.
    TypeError
        If an argument is of the wrong kind.
    """
    chosen = find_rule(rule)
    if arguments.instance("control", control, Parameters).stage != "control":
        raise AlreadyInitializedError(f"control must hold unscaled base values; these parameters are {control.stage}")
    factors = chosen.transformed(control.config)
    return control.derived("initialized", {name: control[name] * factor for name, factor in factors.items()})


def _draw_base(config: DecoderConfig, rng: SplitMix64) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, shape in config.shapes().items():
        if len(shape) == 1:
            arrays[name] = np.ones(shape)
            continue
        values = rng.random(shape)
        values *= 2.0
        values -= 1.0
        values *= math.sqrt(6.0 / sum(shape))
        arrays[name] = values
    return arrays


def _same_bits(one: Array, other: Array) -> bool:
    return np.array_equal(np.ascontiguousarray(one).view(np.uint64), other.view(np.uint64))


def _refuse_gradients(parameters: Parameters) -> None:
    for name, gradient in parameters.gradients.items():
        # A NaN is no zero either.
        if np.any(np.asarray(gradient) != 0):
            raise NonzeroGradientError(name, f"{name} carries a gradient that is not zero; clear it, or prepare again")
