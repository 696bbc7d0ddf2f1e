"""Blocks that between them have every option."""

from __future__ import annotations

from typing import Any

import depthgauge as dg
from depthgauge.equation import ACTIVATIONS, BRANCHES, NORMS

PLACES = ("pre_norm", "output_norm", "post_norm")
SCALES: dict[str, Any] = {"branch_scale": [0.7, -0.4, 0.9], "skip_scale": [0.8, 1.1, -0.6], "weight_scale": 0.9}


def every_block() -> list[dg.Block]:
    """Every activation and every norm at every place, with every branch."""
    found: list[dg.Block] = []
    for branch in BRANCHES:
        found.extend(
            dg.Block(branch=branch, activation=activation, slope=0.3, eps=0.01, **SCALES) for activation in ACTIVATIONS
        )
        for index, norm in enumerate(NORMS):
            for place in PLACES:
                norms: dict[str, Any] = dict.fromkeys(PLACES, "none") | {place: norm}
                found.append(
                    dg.Block(branch=branch, activation=ACTIVATIONS[index], slope=0.3, eps=0.01, **norms, **SCALES)
                )
    return found


def label(block: dg.Block) -> str:
    return "-".join([block.branch, block.activation, block.pre_norm, block.output_norm, block.post_norm])
