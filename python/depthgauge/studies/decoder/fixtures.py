"""The published fixtures: four small decoders, worked values of the rule, classifier examples, and one plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from depthgauge.studies.decoder.commissioning import Commission, commission
from depthgauge.studies.decoder.config import DecoderConfig, symbolic_plan
from depthgauge.studies.decoder.observation import classify
from depthgauge.studies.decoder.rules import ATTENTION_OUTPUT, RULES

# The published wording, kept so that a run can be compared with the published file whole.
SOURCE = "published tables, six decimals: residual projection initialisation for decoder depth"
DECIMALS = 6

_INPUT_IDS = (0, 99, 100, 101)
_TARGET_IDS = (99, 100, 101, 1)

_DEPTHS = (1, 2, 8)
_VECTOR = (0.2, -0.4, 0.0, 0.1)
_CLASSIFIED = {
    "activation": (1.0, 1.2, 8.0, 101.0),
    "gradient": (0.001, 0.5, 0.8, 1.0),
    "boundary": (0.01, 1.0, 100.0),
}

LAPTOP = DecoderConfig(layers=8, width=512, heads=8, kv_heads=2, ff_width=1536, vocabulary=16384, max_positions=512)


@dataclass(frozen=True)
class Fixture:
    """One published decoder.

    Attributes
    ----------
    id, title : str
        Its published names.
    config : DecoderConfig
        Its dimensions.
    """

    id: str
    title: str
    config: DecoderConfig


def _four_wide(layers: int) -> DecoderConfig:
    return DecoderConfig(layers=layers, width=4, heads=1, ff_width=4, vocabulary=266, max_positions=4)


FIXTURES = (
    Fixture("narrow_one_block", "Narrow decoder, one complete block", _four_wide(1)),
    Fixture("narrow_two_blocks", "Narrow decoder, two complete blocks", _four_wide(2)),
    Fixture("narrow_eight_blocks", "Narrow decoder, eight complete blocks", _four_wide(8)),
    Fixture(
        "cpu_bridge_two_blocks",
        "CPU bridge decoder, two complete blocks",
        DecoderConfig(layers=2, width=16, heads=2, ff_width=20, vocabulary=266, max_positions=16),
    ),
)


def run_fixtures(*, backend: str | None = None, threads: int | None = None) -> Iterator[tuple[Fixture, Commission]]:
    """Yield every fixture with its commission; arguments are those of `observe`."""
    for fixture in FIXTURES:
        yield fixture, commission(fixture.config, _INPUT_IDS, _TARGET_IDS, backend=backend, threads=threads)


def fixtures_to_dict(runs: list[tuple[Fixture, Commission]]) -> dict[str, Any]:
    """Return the runs of all fixtures, the worked values, the classifier examples and the plan as plain data."""
    return {
        "source": SOURCE,
        "decimals": DECIMALS,
        **runs[0][1].setting(),
        "fixtures": [{"id": fixture.id, "title": fixture.title, **run.to_dict()} for fixture, run in runs],
        "worked_values": worked_values(),
        "synthetic_classifiers": [
            {"id": name, "ratios": list(ratios), "status": [classify(ratio) for ratio in ratios]}
            for name, ratios in _CLASSIFIED.items()
        ],
        "laptop_plan": symbolic_plan(LAPTOP),
    }


def worked_values() -> dict[str, Any]:
    """Return the rule on a small vector, on an ideal 4 x 4 matrix, and on one scalar weight, by depth.

    The ideal matrix is Xavier uniform: half the width of its interval squared is 6 / (4 + 4), and its variance a third
    of that; the factor enters both squared.  The scalar is y = w x at w = x = 2 with w = alpha * base: its derivative
    by the stored w is x, by the base alpha x, by the input w.
    """
    vector = np.array(_VECTOR)
    rule = RULES["depth"]
    factors = {depth: rule.factors(depth) for depth in _DEPTHS}
    bound_squared = Fraction(6, 4 + 4)
    weight = x = 2
    return {
        "vector": vector.tolist(),
        "factors": {str(depth): factors[depth][ATTENTION_OUTPUT] for depth in _DEPTHS},
        "selected": {str(depth): (vector * factors[depth][ATTENTION_OUTPUT]).tolist() for depth in _DEPTHS},
        "unselected_query": {
            str(depth): (vector * factors[depth].get("attention.query.weight", 1.0)).tolist() for depth in _DEPTHS
        },
        "ideal_4x4": {
            str(depth): {
                "half_bound_squared": str(bound_squared / depth),
                "variance": str(bound_squared / 3 / depth),
            }
            for depth in _DEPTHS
        },
        "scalar_derivatives": {"stored": str(x), "base": f"{x}*alpha", "input": weight},
    }
