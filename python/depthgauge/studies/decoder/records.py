"""The record of an initialization, and restoration of the parameters that were stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import float_array
from depthgauge.studies.decoder.config import DecoderConfig
from depthgauge.studies.decoder.errors import RecordError
from depthgauge.studies.decoder.parameters import Parameters, check_layout
from depthgauge.studies.decoder.rules import RULES, Rule
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

    @classmethod
    def of(cls, config: DecoderConfig, rule: Rule, generator_before: int) -> Record:
        """Return the record of the initialization by `rule` that starts at a generator's state."""
        rng = SplitMix64(generator_before)
        # One output a parameter, but for the gains: one norm before each branch, and the final one.
        rng.skip(config.parameters - (2 * config.layers + 1) * config.width)
        return cls(
            config=config,
            policy=rule.id,
            base_initializer=BASE_INITIALIZER,
            factor=rule.output_factor(config.layers),
            generator_before=generator_before,
            generator_after=rng.state,
            transformed=tuple(rule.transformed(config)),
        )

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
        If the record contradicts itself: another field is not what its configuration, policy and first state give.
    LayoutError
        If names, their order, shapes or dtypes are not the layout's.
    TypeError
        If an argument is of the wrong kind.
    """
    _check_record(arguments.instance("record", record, Record))
    if not isinstance(stored, Mapping):
        raise TypeError(f"stored must map names to arrays; got {type(stored).__name__}")
    arrays = {name: float_array(name, value) for name, value in stored.items()}
    check_layout(record.config, arrays)
    restored = Parameters(record.config)
    restored._fill("restored", {name: np.array(array, order="C") for name, array in arrays.items()})
    return restored


def _check_record(record: Record) -> None:
    if record.policy not in tuple(RULES):
        raise RecordError(f"policy {record.policy!r} is unknown; known are {', '.join(RULES)}")
    try:
        config = arguments.instance("config", record.config, DecoderConfig)
        expected = Record.of(config, RULES[record.policy], record.generator_before)
    except (TypeError, ValueError) as error:
        raise RecordError(f"fields do not describe a record: {error}") from error
    for name, value in vars(expected).items():
        got = getattr(record, name)
        if got != value:
            raise RecordError(
                f"{name} is {short_repr(got)}, but policy {record.policy!r} at {config.layers} layers has "
                f"{short_repr(value)}"
            )
