"""The decoder commissioning: whether depth-scaled initialization keeps residual sites within a band.

A small decoder-only transformer in float64 is initialized with or without a depth factor on the two output projections
of each block.  At every residual site the RMS of the state is taken to that of the input, and the RMS of the completed
derivative of the mean loss to that at the last site; each ratio is below, within or above a band.  The ratios describe
one initialization on one sequence; they do not show that training converges, how large gradients are in themselves, or
what another seed gives.

`commission` does all of it.  Its parts are `prepare` and `Preparation.complete`, which initialize as one transaction,
`restore`, which brings stored parameters back, `observe`, and `loss_derivative` for all derivatives.

Examples
--------
>>> from depthgauge.studies.decoder import DecoderConfig, commission
>>> config = DecoderConfig(layers=2, width=4, heads=1, ff_width=4, vocabulary=266, max_positions=4)
>>> run = commission(config)
>>> print(f"{run.initialized.activation_ratio.max():.6f} {run.control.activation_ratio.max():.6f}")
7.412484 10.582491
"""

from depthgauge.studies.decoder.commissioning import BUDGET, SEED, Commission, commission, example_sequence
from depthgauge.studies.decoder.config import Budget, DecoderConfig, symbolic_plan
from depthgauge.studies.decoder.construction import Initialization, Preparation, apply_rule, prepare
from depthgauge.studies.decoder.errors import (
    AlreadyInitializedError,
    BudgetExceededError,
    DecoderError,
    EmptyValidityError,
    GeneratorMovedError,
    LayoutError,
    ModifiedParameterError,
    NonFiniteRatioError,
    NonFiniteValueError,
    NonzeroGradientError,
    NormalizerError,
    RecordError,
    ZeroDepthError,
)
from depthgauge.studies.decoder.fixtures import FIXTURES, Fixture, fixtures_to_dict, run_fixtures, worked_values
from depthgauge.studies.decoder.model import LossDerivative, loss_derivative
from depthgauge.studies.decoder.observation import (
    ABOVE,
    BAND,
    BELOW,
    WITHIN,
    Observation,
    classify,
    observe,
    site_ratios,
    site_rms,
)
from depthgauge.studies.decoder.parameters import Parameters
from depthgauge.studies.decoder.records import Record, restore
from depthgauge.studies.decoder.rules import RULES, Rule
from depthgauge.studies.decoder.splitmix import SplitMix64

__all__ = [
    "ABOVE",
    "BAND",
    "BELOW",
    "BUDGET",
    "FIXTURES",
    "RULES",
    "SEED",
    "WITHIN",
    "AlreadyInitializedError",
    "Budget",
    "BudgetExceededError",
    "Commission",
    "DecoderConfig",
    "DecoderError",
    "EmptyValidityError",
    "Fixture",
    "GeneratorMovedError",
    "Initialization",
    "LayoutError",
    "LossDerivative",
    "ModifiedParameterError",
    "NonFiniteRatioError",
    "NonFiniteValueError",
    "NonzeroGradientError",
    "NormalizerError",
    "Observation",
    "Parameters",
    "Preparation",
    "Record",
    "RecordError",
    "Rule",
    "SplitMix64",
    "ZeroDepthError",
    "apply_rule",
    "classify",
    "commission",
    "example_sequence",
    "fixtures_to_dict",
    "loss_derivative",
    "observe",
    "prepare",
    "restore",
    "run_fixtures",
    "site_ratios",
    "site_rms",
    "symbolic_plan",
    "worked_values",
]
