"""Rules that scale parameters once, at initialization, by factors of depth; each is a table of factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from depthgauge._common import arguments
from depthgauge.studies.decoder.config import DecoderConfig

# The last matrices of both branches, which write to the residual stream.
ATTENTION_OUTPUT = "attention.output.weight"
FEED_FORWARD_OUTPUT = "ffn.down.weight"


@dataclass(frozen=True)
class Rule:
    """Which parameters of every block are scaled, and by how much.

    Attributes
    ----------
    id : str
        The name in records.
    statement : str
        The rule in words.
    factors : callable
        Takes the number of complete blocks, L, and returns the factors by the parameters' names within a block.
    """

    id: str
    statement: str
    factors: Callable[[int], Mapping[str, float]]

    def output_factor(self, layers: int) -> float:
        """Return the factor of the two output projections; 1 where the rule leaves them alone."""
        return self.factors(layers).get(ATTENTION_OUTPUT, 1.0)

    def selected(self, config: DecoderConfig) -> dict[str, float]:
        """Return the factors by the parameters' full names, in the order of the parameters."""
        factors = self.factors(config.layers)
        found = {}
        for name in config.shapes():
            within = name.split(".", 2)[-1]
            if name.startswith("blocks.") and within in factors:
                found[name] = factors[within]
        return found

    def transformed(self, config: DecoderConfig) -> dict[str, float]:
        """Return the `selected` factors that are not 1: those that change a bit."""
        return {name: factor for name, factor in self.selected(config).items() if factor != 1.0}


def _outputs(factor: float) -> dict[str, float]:
    return {ATTENTION_OUTPUT: factor, FEED_FORWARD_OUTPUT: factor}


def _fixup(layers: int) -> dict[str, float]:
    """Return Fixup's factors for 2L branches: the M - 1 matrices before the last take (2L)^(-1/(2M - 2)).

    The value matrix is the only other one on the path of attention (M = 2); gate and up both are, in the feed-forward
    branch (M = 3).
    """
    branches = 2 * layers
    gated = branches**-0.25
    return {
        "attention.value.weight": 1.0 / math.sqrt(branches),
        "ffn.gate.weight": gated,
        "ffn.up.weight": gated,
        **_outputs(0.0),
    }


RULES: Mapping[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule("depth", "output projections times 1/sqrt(L)", lambda layers: _outputs(1.0 / math.sqrt(layers))),
        Rule("none", "nothing is scaled", lambda layers: {}),
        Rule(
            "gpt2", "output projections times 1/sqrt(2L) (GPT-2)", lambda layers: _outputs(1.0 / math.sqrt(2 * layers))
        ),
        Rule("zero", "output projections 0 (as ReZero starts)", lambda layers: _outputs(0.0)),
        Rule(
            "fixup",
            "output projections 0, value times (2L)^(-1/2), gate and up times (2L)^(-1/4) (as Fixup)",
            _fixup,
        ),
    )
}


def find_rule(name: str) -> Rule:
    """Return the rule of that id.

    Raises
    ------
    ValueError
        If there is none; the message suggests the near one.
    TypeError
        If `name` is not a string.
    """
    return RULES[arguments.choice("rule", name, tuple(RULES), {"rezero": "zero", "unscaled": "none"})]
