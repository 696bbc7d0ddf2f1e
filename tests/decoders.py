"""Decoders that several tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from depthgauge._common.arrays import Array
from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    DecoderConfig,
    Parameters,
    SplitMix64,
    prepare,
)

CONFIG = DecoderConfig(layers=3, width=8, heads=4, kv_heads=2, ff_width=5, vocabulary=11, max_positions=6)
SMALL = DecoderConfig(layers=2, width=8, heads=4, kv_heads=2, ff_width=5, vocabulary=7, max_positions=9)
INPUTS, TARGETS = [0, 3, 6, 3, 1], [3, 6, 3, 1, 2]
WORD = 2**64


def splitmix_words(state: int, count: int) -> list[int]:
    """Return outputs of SplitMix64 by Python's integers."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        words.append(z ^ (z >> 31))
    return words


def touch(array: Array, value: float) -> None:
    array[(0,) * array.ndim] = value


@contextmanager
def unchanged(rng: SplitMix64, *stores: Parameters) -> Iterator[None]:
    """Check that a block changes neither the generator nor a bit of the parameters, nor their stage."""

    def look() -> list[Any]:
        return [rng.state, *((store.stage, {name: a.tobytes() for name, a in store.items()}) for store in stores)]

    before = look()
    yield
    assert look() == before


def initialized(seed: int = 5, config: DecoderConfig = CONFIG, rule: str = "depth") -> decoder.Initialization:
    """Return an initialization that was completed."""
    return prepare(config, BUDGET, SplitMix64(seed), rule=rule).complete()


def made(config: DecoderConfig = SMALL, rule: str = "depth", seed: int = 11) -> Parameters:
    """Return initialized parameters whose gains are no longer 1, as after some training."""
    parameters = prepare(config, BUDGET, SplitMix64(seed), rule=rule).complete().parameters
    rng = np.random.default_rng(seed)
    for name, array in parameters.items():
        if name.endswith("gain"):
            array += 0.3 * rng.standard_normal(array.shape)
    return parameters
