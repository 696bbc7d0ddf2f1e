"""Initialization as a transaction: prepare, look, complete; and restoration of what was stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._arrays import Array, float_array
from depthgauge.studies.decoder.config import Budget, DecoderConfig
from depthgauge.studies.decoder.errors import (
    AlreadyInitializedError,
    GeneratorMovedError,
    LayoutError,
    ModifiedParameterError,
    NonzeroGradientError,
    RecordError,
)
from depthgauge.studies.decoder.parameters import Parameters, check_layout
from depthgauge.studies.decoder.rules import RULES, Rule, find_rule
from depthgauge.studies.decoder.splitmix import SplitMix64

BASE_INITIALIZER = "xavier_uniform.splitmix64"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one initialization did, enough to restore its parameters without doing it again.

    Attributes
    ----------
    config : DecoderConfig
        The dimensions.
    policy : str
        Id of the rule; see `RULES`.
    base_initializer : str
        Id of what drew the base values.
    factor : float
        What the two output projections of each block were multiplied by.
    generator_before, generator_after : int
        States of the generator.
    transformed : tuple of str
        Names of the parameters that were scaled by a factor other than 1.
    """

    config: DecoderConfig
    policy: str
    base_initializer: str
    factor: float
    generator_before: int
    generator_after: int
    transformed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data; states are hexadecimal text, for they exceed the integers of JSON."""
        return {
            "config": self.config.to_dict(),
            "policy": self.policy,
            "base_initializer": self.base_initializer,
            "factor": self.factor,
            "generator_before": f"{self.generator_before:#018x}",
            "generator_after": f"{self.generator_after:#018x}",
            "transformed": list(self.transformed),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Record:
        """Return the record that `to_dict` described.

        Raises
        ------
        RecordError
            If a field is missing, unknown or of the wrong kind.
        """
        try:
            return cls(
                **{
                    **fields,
                    "config": DecoderConfig.from_dict(fields["config"]),
                    "generator_before": int(fields["generator_before"], 16),
                    "generator_after": int(fields["generator_after"], 16),
                    "transformed": tuple(fields["transformed"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"fields do not describe a record: {error!r}") from error


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

    Dropping one changes nothing: neither the caller's generator nor the caller's parameters.

    Attributes
    ----------
    parameters : Parameters
        The base values.
    rule : Rule
        What `complete` will apply.
    """

    def __init__(self, config: DecoderConfig, rng: SplitMix64, rule: Rule, target: Parameters | None) -> None:
        self.rule = rule
        self._rng, self._before, self._after = rng, rng.state, rng.copy()
        self.parameters = Parameters(config)
        self.parameters._fill("base", _draw_base(config, self._after))
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
        for parameters in {id(store): store for store in (base, self._target)}.values():
            _refuse_gradients(parameters)

        transformed = self.rule.transformed(config)
        scaled = {name: base[name] * factor for name, factor in transformed.items()}
        record = Record(
            config=config,
            policy=self.rule.id,
            base_initializer=BASE_INITIALIZER,
            factor=self.rule.output_factor(config.layers),
            generator_before=self._before,
            generator_after=self._after.state,
            transformed=tuple(transformed),
        )
        self._target._fill("initialized", {**base, **scaled})
        base.stage = "initialized"
        self._rng.state = self._after.state
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
    for name, value, kind in (("config", config, DecoderConfig), ("budget", budget, Budget), ("rng", rng, SplitMix64)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}; got {type(value).__name__}")
    chosen = find_rule(rule)
    if parameters is not None:
        if not isinstance(parameters, Parameters):
            raise TypeError(f"parameters must be Parameters; got {type(parameters).__name__}")
        if parameters.stage != "blank":
            raise AlreadyInitializedError(
                f"parameters are {parameters.stage} already; pass blank ones, as Parameters(config) makes"
            )
        if parameters.config != config:
            raise LayoutError("parameters have another configuration than config")
    budget.check(config)
    return Preparation(config, rng, chosen, parameters)


def restore(record: Record, stored: Mapping[str, npt.ArrayLike]) -> Parameters:
    """Return stored parameters, bit for bit; nothing is drawn and nothing is scaled.

    Parameters
    ----------
    record : Record
        The record of the initialization that they came from.
    stored : mapping of str to array_like
        All parameters by name, in order, in float64; they are copied.

    Returns
    -------
    restored : Parameters
        Of stage "restored".

    Raises
    ------
    RecordError
        If policy, base initializer, factor and transformed tensors are not those of the record's configuration.
    LayoutError
        If names, their order, shapes or dtypes are not the layout's.
    TypeError
        If an argument is of the wrong kind.
    """
    if not isinstance(record, Record):
        raise TypeError(f"record must be a Record; got {type(record).__name__}")
    if not isinstance(stored, Mapping):
        raise TypeError(f"stored must map names to arrays; got {type(stored).__name__}")
    _check_record(record)
    arrays = {name: float_array(name, value) for name, value in stored.items()}
    check_layout(record.config, arrays)
    restored = Parameters(record.config)
    restored._fill("restored", {name: np.array(array, order="C") for name, array in arrays.items()})
    return restored


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
    """
    chosen = find_rule(rule)
    if control.stage != "control":
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


def _check_record(record: Record) -> None:
    if record.base_initializer != BASE_INITIALIZER:
        raise RecordError(f"base initializer {record.base_initializer!r} is unknown; known is {BASE_INITIALIZER!r}")
    if record.policy not in tuple(RULES):
        raise RecordError(f"policy {record.policy!r} is unknown; known are {', '.join(RULES)}")
    rule, config = RULES[record.policy], record.config
    if record.factor != rule.output_factor(config.layers):
        raise RecordError(
            f"factor {record.factor!r} is not that of policy {record.policy!r} at {config.layers} layers, "
            f"{rule.output_factor(config.layers)!r}"
        )
    if tuple(record.transformed) != tuple(rule.transformed(config)):
        raise RecordError(f"the transformed tensors are not those of policy {record.policy!r}")
