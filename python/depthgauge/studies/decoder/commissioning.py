"""The commissioning of one decoder: initialize it, observe it, and observe the same base under other rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from depthgauge._common import arguments
from depthgauge.studies.decoder.config import Budget, DecoderConfig
from depthgauge.studies.decoder.construction import apply_rule, prepare
from depthgauge.studies.decoder.observation import BAND, Observation, observe
from depthgauge.studies.decoder.parameters import Parameters
from depthgauge.studies.decoder.records import Record
from depthgauge.studies.decoder.rules import RULES, find_rule
from depthgauge.studies.decoder.sequence import Tokens, read_sequence
from depthgauge.studies.decoder.splitmix import SplitMix64

SEED = 4701
# Two gigabytes a copy, of which a run holds three at most.
BUDGET = Budget(parameters=250_000_000, positions=1 << 14)

# The published sequence: a start token, letters, and an end token.
_START, _LETTERS, _END = 0, 99, 1


@dataclass(frozen=True, eq=False, repr=False)
class Commission:
    """The result of `commission`.

    Attributes
    ----------
    config : DecoderConfig
    seed : int
    input_ids, target_ids : tuple of int
        What was asked for.
    record : Record
        The initialization.
    initialized : Observation
        The decoder under the rule.
    control : Observation
        The same base, unscaled.
    comparisons : dict of str to Observation
        The same base under other rules, by their ids.
    """

    config: DecoderConfig
    seed: int
    input_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    record: Record
    initialized: Observation
    control: Observation
    comparisons: dict[str, Observation]

    @property
    def observations(self) -> dict[str, Observation]:
        """All observations by the ids of their rules, the control's being "none"."""
        return {self.record.policy: self.initialized, "none": self.control, **self.comparisons}

    def __repr__(self) -> str:
        return f"Commission(layers={self.config.layers}, width={self.config.width}, initialized={self.initialized!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, values unrounded."""
        config, control = self.config, self.control.to_dict()
        return {
            "layers": config.layers,
            "width": config.width,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "ff_width": config.ff_width,
            "vocabulary": config.vocabulary,
            "max_positions": config.max_positions,
            "parameters": config.parameters,
            "factor": self.record.factor,
            "counts_table": {"parameters": config.parameters, "residual_sites": config.sites},
            "record": self.record.to_dict(),
            "selected": list(RULES[self.record.policy].selected(config)),
            "unchanged_tensors": len(config.shapes()) - len(self.record.transformed),
            "initialized": self.initialized.to_dict(),
            "same_base_unscaled_control": {
                **control,
                "max_table_activation_ratio": control["max_activation_ratio"],
                "max_table_adjoint_ratio": control["max_adjoint_ratio"],
            },
            "comparisons": {rule: observation.to_dict() for rule, observation in self.comparisons.items()},
        }

    def setting(self) -> dict[str, Any]:
        """Return the seed, the sequence and the constants as plain data."""
        return {
            "seed": self.seed,
            "input_ids": list(self.input_ids),
            "target_ids": list(self.target_ids),
            "positions": list(range(len(self.input_ids))),
            "rope_base": self.config.rope_base,
            "rms_epsilon": self.config.rms_epsilon,
            "band": list(BAND),
        }


def commission(
    config: DecoderConfig,
    input_ids: Tokens | None = None,
    target_ids: Tokens | None = None,
    *,
    seed: int = SEED,
    compare: Sequence[str] = (),
    budget: Budget = BUDGET,
    backend: str | None = None,
    threads: int | None = None,
) -> Commission:
    """Initialize a decoder by the depth rule, observe it, and observe the same base unscaled and under other rules.

    Parameters
    ----------
    config : DecoderConfig
        The dimensions.
    input_ids, target_ids : array_like of int, shape (T,), optional
        Tokens, and those to predict; None means `example_sequence` of all positions.
    seed : int
        Seed of the SplitMix64 generator.
    compare : sequence of str
        Ids of other rules; see `RULES`.
    budget : Budget
        What the decoder must fit, checked before any array is made.
    backend, threads
        As for `observe`.

    Returns
    -------
    Commission

    Raises
    ------
    BudgetExceededError
        If the decoder does not fit.
    DecoderError, ValueError, TypeError
        As for `prepare` and `observe`.
    """
    arguments.instance("config", config, DecoderConfig)
    arguments.instance("budget", budget, Budget)
    if (input_ids is None) != (target_ids is None):
        raise ValueError("input_ids and target_ids go together; give both or neither")
    others = _compared(compare)
    rng = SplitMix64(seed)
    budget.check(config)
    if input_ids is None or target_ids is None:
        input_ids, target_ids = example_sequence(config.max_positions, config.vocabulary)
    sequence = read_sequence(config, input_ids, target_ids, None)
    done = prepare(config, budget, rng).complete()

    def observed(parameters: Parameters) -> Observation:
        return observe(parameters, *sequence, backend=backend, threads=threads)

    return Commission(
        config=config,
        seed=done.record.generator_before,
        input_ids=tuple(sequence.inputs.tolist()),
        target_ids=tuple(sequence.targets.tolist()),
        record=done.record,
        initialized=observed(done.parameters),
        control=observed(done.control),
        comparisons={rule: observed(apply_rule(rule, done.control)) for rule in others},
    )


def _compared(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"compare must be a sequence of rules' ids; got {names!r}")
    return [find_rule(name).id for name in names]


def example_sequence(positions: int, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return the published kind of sequence, of any length: 0, 99, 100, 101, ..., each to predict the next, then 1.

    Tokens wrap around at the end of the vocabulary.

    Returns
    -------
    list of int
        The input ids.
    list of int
        The target ids.

    Raises
    ------
    ValueError
        If `positions` or `vocabulary` is below 1.
    TypeError
        If one is not an integer.
    """
    positions = arguments.integer("positions", positions, minimum=1)
    vocabulary = arguments.integer("vocabulary", vocabulary, minimum=1)
    inputs = [_START] + [(_LETTERS + letter) % vocabulary for letter in range(positions - 1)]
    return inputs, [*inputs[1:], _END % vocabulary]
